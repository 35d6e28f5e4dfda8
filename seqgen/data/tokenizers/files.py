"""The files of a tokenizer in Hugging Face's layout."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

from tokenizers import AddedToken

from seqgen.core.errors import DataError, shown
from seqgen.data.tokenizers.base import SENTINEL
from seqgen.system.error_messages import reading_errors
from seqgen.system.files import write_atomically
from seqgen.system.reading import parse_json, read_bytes

CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
FAST_FILE = "tokenizer.json"
MODEL_FILE = "spiece.model"
VOCAB_FILE = "vocab.json"
MERGES_FILE = "merges.txt"
FAIRSEQ_MODEL_FILE = "sentencepiece.bpe.model"
SOURCE_MODEL_FILE = "source.spm"
TARGET_MODEL_FILE = "target.spm"
TARGET_VOCAB_FILE = "target_vocab.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
FILES = tuple(value for name, value in list(globals().items()) if name.endswith("_FILE"))


@dataclass(frozen=True)
class TokenizerFiles:
    """The content of a tokenizer's files, by name.

    Attributes:
        location: the folder, for messages.
        contents: the bytes of each file of ``FILES`` that exists.
    """

    location: str
    contents: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the files that a folder contains.

        Args:
            folder: the folder; other files in it are not read.

        Raises:
            DataError: there is no such folder, or a file cannot be read.
        """
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}; give the folder of a tokenizer in Hugging Face's layout")
        contents = {name: read_file(folder / name) for name in FILES}
        return cls(str(folder), {name: content for name, content in contents.items() if content is not None})

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    def need(self, name: str) -> bytes:
        """The bytes of a required file.

        Args:
            name: one of ``FILES``.

        Raises:
            DataError: the folder has no such file.
        """
        if name not in self.contents:
            raise DataError(
                f"{self.location} has no {name}; copy the files that it was saved with, or set reading.tokenizer=ids"
            )
        return self.contents[name]

    def write(self, folder: Path) -> None:
        """Write the files.

        Args:
            folder: where to; it is created if it does not exist.

        Raises:
            DataError: the folder contains a further file of ``FILES``, which would be read as part of this tokenizer.
            UserError: a file cannot be written.
        """
        for name in FILES:
            if name not in self and (folder / name).exists():
                raise DataError(f"{folder / name} belongs to another tokenizer; give a new folder, or remove it")
        for name, content in self.contents.items():
            write_atomically(folder / name, content)

    def json(self, name: str) -> dict[str, Any]:
        """The JSON object in a file; an empty one if the file does not exist.

        Args:
            name: one of ``FILES``.

        Raises:
            DataError: the file does not contain a JSON object.
        """
        return parse_object(self.contents.get(name, b"{}"), f"{self.location}/{name}")


def read_file(path: Path) -> bytes | None:
    """The bytes of a file; ``None`` if it does not exist.

    Args:
        path: the file.

    Raises:
        DataError: the file cannot be read.
    """
    with reading_errors(path, DataError):
        return read_bytes(path) if path.exists() else None


def parse_object(content: bytes, location: str) -> dict[str, Any]:
    """Parse the content of a file as a JSON object.

    Args:
        content: its bytes.
        location: its path, for messages.

    Raises:
        DataError: it is not JSON, or not an object.
    """
    try:
        parsed = parse_json(content)
    except ValueError as error:
        raise DataError(f"{location} is not JSON, or is damaged ({error}); copy it again") from None
    if not isinstance(parsed, dict):
        raise DataError(f"{location} does not contain a JSON object; copy it again")
    return parsed


def to_json(content: dict[str, Any]) -> bytes:
    """Serialize an object in the form that Hugging Face's tools write: sorted keys, two spaces per level."""
    return (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULTS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
FAIRSEQ_NAMED = {**DEFAULTS, "bos_token": "<s>", "sep_token": "</s>", "cls_token": "<s>"}
MASK = "<mask>"
"""The tokens of models that were trained with fairseq, such as BART and mBART."""

FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
MAX_IDS = 10_000_000
"""Maximum number of ids, so that a damaged file cannot make a vocabulary that fills the memory."""

REFUSED: tuple[str, ...] = ("vocab_file", "merges_file", "spm_file", "source_spm", "target_spm", "vocab")
REFUSED += ("target_vocab_file", "sp_model_kwargs", "init_inputs")
"""Keys of ``tokenizer_config.json`` that are refused: those that name other files than those of the folder, and others
that change the ids."""

ADDITIONAL = ("additional_special_tokens", "extra_special_tokens")
"""The key of the special tokens without a name: up to version 4 of transformers, and from version 5 on."""

Token: TypeAlias = AddedToken | str
"""A token with its flags, or only its string if a file does not give the flags."""


@dataclass
class SpecialTokens:
    """The special and added tokens in a tokenizer's files.

    Attributes:
        location: the tokenizer's folder, for messages.
        config: the content of ``tokenizer_config.json``.
        named: the tokens that have a name, such as ``eos_token``; ``None`` for one that a file sets to null.
        additional: the other special tokens, such as the sentinels; ``None`` if no file has a list of them.
        added: the added tokens, special or not, by id.
    """

    location: str
    config: dict[str, Any]
    named: dict[str, Token | None]
    additional: list[Token] | None
    added: dict[int, AddedToken]

    @classmethod
    def read(cls, files: TokenizerFiles) -> SpecialTokens:
        """Read the special and added tokens.

        A ``tokenizer_config.json`` with ``added_tokens_decoder`` is complete. Otherwise ``special_tokens_map.json``,
        ``added_tokens.json`` and ``tokenizer.json`` are read after it, in this order; later values replace earlier
        ones.

        Args:
            files: the tokenizer's files.

        Raises:
            DataError: a file is damaged, or has a key that is not supported.
        """
        config = files.json(CONFIG_FILE)
        special = cls(files.location, config, {}, None, {})
        for key in REFUSED:
            if config.get(key):
                raise DataError(
                    f"{files.location}/{CONFIG_FILE}: {key} is {shown(config[key])}, which seqgen does not support; "
                    "remove the key, and copy a file that it names into the folder under its usual name"
                )
        special._take(config, CONFIG_FILE)
        if "added_tokens_decoder" in config:
            special._add(config["added_tokens_decoder"], CONFIG_FILE)
        else:
            special._take(files.json(SPECIAL_TOKENS_FILE), SPECIAL_TOKENS_FILE, special=True)
            special._take_added(files.json(ADDED_TOKENS_FILE))
            special._add(files.json(FAST_FILE).get("added_tokens", []), FAST_FILE)
        return special

    def _take(self, content: dict[str, Any], name: str, **flags: bool) -> None:
        where = f"{self.location}/{name}"
        for key in NAMED:
            if key in content:
                self.named[key] = None if content[key] is None else as_token(content[key], f"{where}: {key}", **flags)
        for key in ADDITIONAL:
            tokens = content.get(key)
            if tokens is None or tokens == {}:
                continue
            if isinstance(tokens, dict) and key == ADDITIONAL[1]:  # with names, such as the boi_token of Gemma 3
                tokens = [*tokens.values()]
            if not isinstance(tokens, list):
                raise DataError(f"{where}: {key} is not a list, which seqgen does not support; correct or remove it")
            have = [str(token) for token in self.additional or []]
            new = [as_token(token, f"{where}: {key}", **flags) for token in tokens]
            self.additional = [*(self.additional or []), *(token for token in new if str(token) not in have)]

    def _take_added(self, ids: dict[str, Any]) -> None:
        special = {str(token) for token in self.all()}
        for content, index in ids.items():
            flag = content in special
            self.added[as_id(index, self.location)] = AddedToken(content, special=flag, normalized=not flag)

    def _add(self, entries: Any, name: str) -> None:
        where, tokens = f"{self.location}/{name}: the added token", dict[int, AddedToken]()
        try:
            pairs = entries.items() if isinstance(entries, dict) else [(entry["id"], entry) for entry in entries]
        except (TypeError, KeyError):
            raise DataError(f"{where}s are damaged; copy the file again") from None
        for index, entry in pairs:
            token = as_token(entry, f"{where} {shown(index)}")
            if isinstance(token, str):
                raise DataError(f"{where} {shown(index)} has no flags; copy the folder again")
            tokens[as_id(index, self.location)] = token
        self.added.update(tokens)
        by_content = {token.content: token for token in tokens.values()}
        self.named = {key: token and by_content.get(str(token), token) for key, token in self.named.items()}

    def all(self) -> list[Token]:
        """All special tokens, each string once: the named ones, then the additional ones."""
        tokens = [token for key in NAMED if (token := self.named.get(key))]
        distinct: dict[str, Token] = {}
        for token in [*tokens, *(self.additional or [])]:
            distinct.setdefault(str(token), token)
        return list(distinct.values())

    def fill(self, defaults: Mapping[str, str] = DEFAULTS, **flags: bool) -> None:
        """Set named tokens if no file names them.

        Args:
            defaults: the tokens by name; by default T5's end-of-sentence, padding and unknown token.
            flags: flags for those of the tokens that have none; without flags, they remain strings.
        """
        for key, default in defaults.items():
            token = self.named.setdefault(key, default)
            if flags and isinstance(token, str):
                self.named[key] = AddedToken(token, **flags)

    def mark(self) -> None:
        """Mark the special tokens as such, and keep ``normalized``, whose default is the opposite of ``special``.

        Slow tokenizers do so. A fast tokenizer that is converted from a slow one gets its tokens.
        """
        for token in self.all():
            if isinstance(token, AddedToken):
                token.__setstate__({"special": True, "normalized": token.normalized})

    def number(self, key: str, default: int) -> int:
        """A number of ids in ``tokenizer_config.json``.

        Args:
            key: its key.
            default: the value if the file does not have the key.

        Raises:
            DataError: the value is not an integer from 0 to ``MAX_IDS``.
        """
        value = self.config.get(key, default)
        if type(value) is not int or not 0 <= value <= MAX_IDS:
            raise DataError(
                f"{self.location}/{CONFIG_FILE}: {key} is {shown(value)}; it must be a whole number from 0 to {MAX_IDS}"
            )
        return value

    def add_sentinels(self, default: int, alone: bool) -> None:
        """Add the sentinels that T5's and ByT5's tokenizers have if no file lists them.

        Args:
            default: their number if ``extra_ids`` does not give it.
            alone: whether a file that lists other tokens must also list the sentinels.

        Raises:
            DataError: ``extra_ids`` differs from the number of sentinels that the files list.
        """
        count = self.number("extra_ids", default)
        given = len({str(token) for token in self.additional or [] if "extra_id_" in str(token)})
        if not given and not (alone and self.additional):
            self.additional = [*(self.additional or []), *map(SENTINEL.format, range(count))]
        elif count not in (0, given):
            raise DataError(
                f"{self.location}/{CONFIG_FILE} has extra_ids {count} but {given} sentinels among its "
                "additional_special_tokens; set extra_ids to their number"
            )


def as_token(value: Any, where: str, **flags: bool) -> Token:
    """Read a token from JSON.

    Args:
        value: its string, or an object with ``content`` and flags.
        where: file and key, for messages.
        flags: flags that are added to those of an object.

    Raises:
        DataError: the value is neither.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        given = {key: bool(value[key]) for key in FLAGS if key in value}
        return AddedToken(value["content"], **{**given, **flags})
    raise DataError(f"{where} is {str(value)[:40]!r}, which is not a token; copy the file again")


def as_id(value: Any, location: str) -> int:
    """Read an id from JSON.

    Args:
        value: the id as a number or a string.
        location: the tokenizer's folder, for messages.

    Raises:
        DataError: the value is not a whole number from 0 to below ``MAX_IDS``.
    """
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < MAX_IDS):
        raise DataError(f"{location}: {text[:40]!r} is not the id of an added token; copy the folder again")
    return int(text)


class AddedVocabulary:
    """Finds added tokens in a text.

    Args:
        added: the tokens by id.

    Attributes:
        ids: the id of each token, by its string.
        tokens: the tokens by id.
    """

    def __init__(self, added: dict[int, AddedToken]):
        self.tokens = added
        self.ids = {token.content: index for index, token in added.items()}
        longest_first = sorted((content for content in self.ids if content), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None

    def split(self, text: str) -> list[str]:
        """Cut a text before and after each added token.

        A token can remove the white space to its left or right (``lstrip``, ``rstrip``). With ``single_word`` it is
        recognized only between spaces or at an end of the text::

            "a <x> b"  ->  ["a ", "<x>", " b"]        or, with lstrip,  ["a", "<x>", " b"]

        Args:
            text: the text.

        Returns:
            The tokens and the texts between them, in order; none is empty.
        """
        if self._pattern is None:
            return [text] if text else []
        parts = [part for part in self._pattern.split(text) if part]
        for i, part in enumerate(parts):
            if part in self.ids:
                self._take_spaces(parts, i, self.tokens[self.ids[part]])
        return [part for part in parts if part]

    @staticmethod
    def _take_spaces(parts: list[str], i: int, token: AddedToken) -> None:
        left = parts[i - 1] if i > 0 else ""
        right = parts[i + 1] if i + 1 < len(parts) else ""
        if token.rstrip and right:
            parts[i + 1] = right.lstrip()
        if token.lstrip and left:
            parts[i - 1] = left.rstrip()
        if token.single_word and left and left[-1] != " ":
            parts[i - 1] += token.content
            parts[i] = ""
        elif token.single_word and right and right[0] != " ":
            parts[i + 1] = token.content + parts[i + 1]
            parts[i] = ""
