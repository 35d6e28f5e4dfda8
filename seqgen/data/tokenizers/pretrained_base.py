"""The base class of tokenizers in Hugging Face's file layout."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from seqgen.core.errors import DataError
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, load_tokenizer, of_byte_characters, of_spaced_pieces, write_settings
from seqgen.data.tokenizers.files import CONFIG_FILE, SpecialTokens, TokenizerFiles

MAX_UNUSED = 100_000
"""Maximum number of ids without a token, so that a damaged file cannot make a vocabulary that fills the memory."""

CLEAN_UP = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""The texts whose spaces ``clean_up_tokenization_spaces`` removes, in this order."""


class PretrainedTokenizer(Tokenizer):
    """A tokenizer in Hugging Face's file layout; ``pretrained.CLASSES`` lists the subclasses.

    ``encode(text)`` followed by end-of-sentence equals ``tokenizer(text).input_ids`` of ``transformers``, and
    ``decode(ids)`` equals its ``tokenizer.decode(ids, skip_special_tokens=True)``.

    Args:
        files: the files.
        special: the special and added tokens.
        tokens: the token of each id; ids without a token are unused.
        vocab_size: number of rows of the model's embedding, at least the number of the tokenizer's ids; further ids
            decode to nothing. ``None`` for the number of the tokenizer's ids.

    Raises:
        DataError: padding, end-of-sentence or the unknown token is missing, or there are more ids than ``vocab_size``.
    """

    def __init__(
        self, files: TokenizerFiles, special: SpecialTokens, tokens: Mapping[int, str], vocab_size: int | None
    ):
        self.files = files
        self.special = special
        self.vocab_size = vocab_size
        size = max(tokens) + 1
        if size > len(tokens) + MAX_UNUSED:
            raise DataError(
                f"the tokenizer in {files.location} is damaged: it has an id of {size - 1} but only "
                f"{len(tokens)} tokens"
            )
        if vocab_size is not None and vocab_size < size:
            raise DataError(
                f"the tokenizer in {files.location} has {size} ids but the model's vocabulary only {vocab_size}; "
                "give the tokenizer that belongs to the model"
            )
        names = distinct_names(tokens, size if vocab_size is None else vocab_size)
        ids = {name: index for index, name in enumerate(names)}
        special_ids = {}
        for name in ("eos", "pad", "unk", "bos"):
            token = str(special.named.get(f"{name}_token") or "")
            if token not in ids and (token or name != "bos"):
                raise DataError(f"the tokenizer in {files.location} has no {name}_token; name it in its {CONFIG_FILE}")
            special_ids[name] = ids.get(token)
        super().__init__(Dictionary(names, **special_ids))  # type: ignore[arg-type]

    further: Mapping[str, Any] = {}
    """Further arguments of the class, which are saved."""

    byte_characters: bool = False
    """True if tokens are written in GPT-2's characters for bytes, rather than as SentencePiece's pieces."""

    @abstractmethod
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Turn ids into text.

        Args:
            ids: the ids; unused ones are left out.
            skip_special_tokens: whether special tokens (end-of-sentence, padding, sentinels) are left out too.

        Returns:
            The text.
        """

    def special_text(self, index: int) -> str:
        """See ``Tokenizer.special_text``."""
        is_special = self.decode([index]) != self.decode([index], skip_special_tokens=False)
        return self.dictionary.symbol(index) if is_special else ""

    @abstractmethod
    def tokens_and_added(self) -> tuple[list[str | None], set[int]]:
        """The token of each id, ``None`` for an unused one, and the ids of special and added tokens."""

    def token_bytes(self) -> list[bytes | None]:
        """See ``Tokenizer.token_bytes``; special and added tokens and those of languages have no text."""
        tokens, added = self.tokens_and_added()
        languages = self.languages.ids.values() if self.languages is not None else ()
        bytes_of = of_byte_characters if self.byte_characters else of_spaced_pieces
        return bytes_of(tokens, {*added, *self.dictionary.special_ids.values(), *languages})

    def clean_up(self, text: str) -> str:
        """Remove spaces before English punctuation if the configuration sets ``clean_up_tokenization_spaces``."""
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
        write_settings(folder, {"tokenizer": "pretrained", "vocab_size": self.vocab_size, **self.further})
        self.files.write(folder / "pretrained")

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """See ``Tokenizer.load``."""
        return cast(Self, load_tokenizer(folder))  # of the class that the files name

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.further), (self.files, self.vocab_size)


def distinct_names(tokens: Mapping[int, str], size: int) -> list[str]:
    """Name every id of a vocabulary.

    Args:
        tokens: the tokens by id.
        size: number of ids; an id without a token is named ``<unused_ID>``.

    Returns:
        A distinct name for each id: its token, with ``<0x00>`` for the character NUL, which no setting may have, and
        with ``#ID`` appended if an earlier id has the same one.
    """
    names: dict[str, None] = {}
    for index in range(size):
        name = tokens.get(index, f"<unused_{index}>").replace("\0", "<0x00>")
        while name in names:
            name += f"#{index}"
        names[name] = None
    return list(names)
