"""Tokenizers in Hugging Face's file layout: reading them, writing them, and what they have in common."""

from __future__ import annotations

import hashlib
import importlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import SENTINEL, Tokenizer, register_tokenizer, write_settings
from seqgen.data.tokenizers.files import (
    CONFIG_FILE,
    FAST_FILE,
    MODEL_FILE,
    SPECIAL_TOKENS_FILE,
    TokenizerFiles,
    parse_object,
    read_file,
    to_json,
)
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, load_processor
from seqgen.data.tokenizers.special_tokens import DEFAULTS, MAX_IDS, SpecialTokens
from seqgen.errors import DataError, nearest

SLOW, FAST, BYTES = "T5Tokenizer", "T5TokenizerFast", "ByT5Tokenizer"
CLASSES = {
    SLOW: "seqgen.data.tokenizers.t5:SlowT5Tokenizer",
    FAST: "seqgen.data.tokenizers.fast:FastT5Tokenizer",
    BYTES: "seqgen.data.tokenizers.byte:ByteTokenizer",
}
"""By the names that ``tokenizer_config.json`` gives them: the module and class of each."""

ALIASES = {"MT5Tokenizer": SLOW, "MT5TokenizerFast": FAST}

CLEAN_UP = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What ``clean_up_tokenization_spaces`` writes without its spaces, one after the other."""


@register_tokenizer("pretrained")
class PretrainedTokenizer(Tokenizer):
    """A tokenizer in Hugging Face's file layout; its subclasses are the kinds of them.

    ``encode(text)`` and end-of-sentence are what ``transformers`` gives as ``tokenizer(text).input_ids``, and
    ``decode(ids)`` what it gives as ``tokenizer.decode(ids, skip_special_tokens=True)``.

    Args:
        files: the files.
        special: the special and added tokens.
        tokens: the token of each id; an id without one is unused.
        vocab_size: number of rows of the embedding, if it has more than the tokenizer has ids; the others decode to
            nothing.

    Raises:
        DataError: the tokenizer lacks a special token, or has more ids than ``vocab_size``.
    """

    def __init__(
        self, files: TokenizerFiles, special: SpecialTokens, tokens: Mapping[int, str], vocab_size: int | None
    ):
        self.files = files
        self.special = special
        self.vocab_size = vocab_size
        size = max(tokens) + 1
        if vocab_size is not None and vocab_size < size:
            raise DataError(
                f"the tokenizer in {files.origin} has {size} ids but the model's vocabulary only {vocab_size}; "
                "give the tokenizer that belongs to the model"
            )
        names = distinct_names(tokens, size if vocab_size is None else vocab_size)
        ids = {name: index for index, name in enumerate(names)}
        special_ids = {}
        for name in ("pad", "eos", "unk", "bos"):
            token = str(special.named.get(f"{name}_token") or "")
            if token not in ids and (token or name != "bos"):
                raise DataError(f"the tokenizer in {files.origin} has no {name}_token; name it in its {CONFIG_FILE}")
            special_ids[name] = ids.get(token)
        super().__init__(Dictionary(names, **special_ids))  # type: ignore[arg-type]

    @abstractmethod
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Turn ids into text.

        Args:
            ids: the ids; one that stands for nothing is left out.
            skip_special_tokens: whether end-of-sentence, padding and the sentinels are left out too.
        """

    def clean_up(self, text: str) -> str:
        """Remove the spaces before English punctuation, where the tokenizer's configuration says so."""
        if self.special.config.get("clean_up_tokenization_spaces"):
            for pattern in CLEAN_UP:
                text = text.replace(pattern, pattern.strip())
        return text

    def fingerprint(self) -> str:
        """See ``Tokenizer.fingerprint``."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.contents.items()):
            digest.update(f"{name}:{len(content)}:".encode() + content)
        return f"pretrained:{digest.hexdigest()}"

    def save(self, folder: Path) -> None:
        """See ``Tokenizer.save``."""
        write_settings(folder, {"tokenizer": "pretrained", "vocab_size": self.vocab_size})
        self.files.write(folder / "pretrained")

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """See ``Tokenizer.load``."""
        vocab_size = settings.get("vocab_size")
        if vocab_size is not None and type(vocab_size) is not int:
            raise DataError(
                f"{folder / 'tokenizer.json'} is damaged; copy the folder again or train the tokenizer again"
            )
        return cast(Self, load_pretrained_tokenizer(folder / "pretrained", vocab_size))

    def __reduce__(self) -> tuple[Any, ...]:
        return make_tokenizer, (self.files, self.vocab_size)


def distinct_names(tokens: Mapping[int, str], size: int) -> list[str]:
    """Name every id of a vocabulary.

    Args:
        tokens: the tokens by id; unused ids are left out.
        size: number of ids; those without a token are ``<unused_ID>``.

    Returns:
        A distinct name for each id: its token, with ``#ID`` appended if an earlier id has the same one.
    """
    names: dict[str, None] = {}
    for index in range(size):
        name = tokens.get(index, f"<unused_{index}>")
        while name in names:
            name += f"#{index}"
        names[name] = None
    return list(names)


def load_pretrained_tokenizer(folder: Path, vocab_size: int | None = None) -> PretrainedTokenizer:
    """Read a tokenizer in Hugging Face's layout: T5's, mT5's, umT5's or ByT5's.

    The class is the one that ``tokenizer_config.json`` names. Where it names none, it is the one that ``transformers``
    chooses for a T5: ByT5's where ``config.json`` says so, or else the fast one.

    Args:
        folder: the folder.
        vocab_size: number of rows of the model's embedding; ids above the tokenizer's decode to nothing. ``None`` for
            that of the ``config.json`` in the folder, or for as many as the tokenizer has.

    Raises:
        DataError: a file is missing or damaged, the class is unknown, or there are more ids than ``vocab_size``.
    """
    files = TokenizerFiles.read(folder)
    model = parse_object(read_file(folder / "config.json") or b"{}", f"{folder}/config.json")
    config = files.json(CONFIG_FILE)
    if config.get("tokenizer_class") is None:
        config["tokenizer_class"] = BYTES if model.get("tokenizer_class") == BYTES else FAST
        files = TokenizerFiles(files.origin, {**files.contents, CONFIG_FILE: to_json(config)})
    rows = model.get("vocab_size")
    if vocab_size is None and type(rows) is int and rows <= MAX_IDS:
        vocab_size = rows
    return make_tokenizer(files, vocab_size)


def make_tokenizer(files: TokenizerFiles, vocab_size: int | None = None) -> PretrainedTokenizer:
    """Make a tokenizer of the class that ``tokenizer_config.json`` names.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: see ``load_pretrained_tokenizer``.
    """
    config = files.json(CONFIG_FILE)
    named = str(config.get("tokenizer_class"))
    name = ALIASES.get(named, named)
    if name not in CLASSES:
        known = [*CLASSES, *ALIASES]
        raise DataError(
            f"{files.origin}/{CONFIG_FILE} names the class {named!r}{nearest(named, known)}, which seqgen cannot read; "
            f"it reads {', '.join(known)}"
        )
    if name != BYTES and MODEL_FILE not in files and FAST_FILE not in files:
        raise DataError(f"{files.origin} has neither {MODEL_FILE} nor {FAST_FILE}; copy the one that belongs to it")
    if name == SLOW and (MODEL_FILE not in files or (config.get("backend") == "tokenizers" and FAST_FILE in files)):
        name = FAST  # the only one that can be made of what is there, or the one that version 5 of transformers saved
    module, _, component = CLASSES[name].partition(":")
    tokenizer: PretrainedTokenizer = getattr(importlib.import_module(module), component)(files, vocab_size)
    return tokenizer


def save_pretrained_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer in Hugging Face's layout, so that ``transformers`` reads it and gives the same ids.

    Args:
        tokenizer: one that was read from that layout or has T5's; or a SentencePiece model with its own ids.
        folder: where to; made where there is none.

    Raises:
        DataError: the layout has no place for such a tokenizer, or the folder has files of another.
        UserError: a file cannot be written.
    """
    if isinstance(tokenizer, PretrainedTokenizer):
        files = _readable(tokenizer.files)
    elif isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.native:
        files = t5_files(tokenizer.model, extra_ids=0, legacy=True)
    else:
        raise DataError(
            f"a {type(tokenizer).__name__} cannot be written in Hugging Face's layout, which is for SentencePiece "
            "models with their own ids and for bytes"
        )
    files.write(folder)


def _readable(files: TokenizerFiles) -> TokenizerFiles:
    """The same files with a ``tokenizer_config.json`` that versions 4 and 5 of ``transformers`` read alike."""
    config = files.json(CONFIG_FILE)
    if "backend" not in config:
        return files
    config.pop("add_prefix_space", None)  # version 5 ignores it, version 4 makes the tokenizer anew from spiece.model
    config["additional_special_tokens"] = config.pop("extra_special_tokens", [])
    return TokenizerFiles(files.origin, {**files.contents, CONFIG_FILE: to_json(config)})


def t5_files(model: bytes, *, extra_ids: int = 100, legacy: bool = False) -> TokenizerFiles:
    """The files of a new T5 tokenizer.

    Its sentinels leave the spaces beside them to the pieces, so that ``a <extra_id_0> b`` is encoded as what span
    corruption makes of an encoded text, with the space at the beginning of ``▁b``.

    Args:
        model: a SentencePiece model with the pieces ``<pad>``, ``</s>`` and ``<unk>``.
        extra_ids: number of sentinels, whose ids follow those of the pieces and go downwards.
        legacy: whether the pieces after a special token get a space that the text does not have.

    Raises:
        DataError: it is not a SentencePiece model.
    """
    top = int(load_processor(model, "the SentencePiece model").vocab_size()) + extra_ids - 1
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    added = {str(top - i): {"content": SENTINEL.format(i), **flags} for i in range(extra_ids)}
    config = {"tokenizer_class": SLOW, "legacy": legacy, "add_prefix_space": True, "added_tokens_decoder": added}
    return _new_files({**config, "extra_ids": extra_ids}, {MODEL_FILE: model})


def byte_files(extra_ids: int = 125) -> TokenizerFiles:
    """The files of ByT5's tokenizer.

    Args:
        extra_ids: number of sentinels, whose ids go upwards from 259.
    """
    return _new_files({"tokenizer_class": BYTES, "extra_ids": extra_ids}, {})


def _new_files(config: dict[str, Any], further: dict[str, bytes]) -> TokenizerFiles:
    sentinels = [SENTINEL.format(i) for i in range(config["extra_ids"])]
    special = {**DEFAULTS, "additional_special_tokens": sentinels}
    config = {**config, "clean_up_tokenization_spaces": False, **special}
    contents = {CONFIG_FILE: to_json(config), SPECIAL_TOKENS_FILE: to_json(special), **further}
    return TokenizerFiles("the tokenizer", contents)
