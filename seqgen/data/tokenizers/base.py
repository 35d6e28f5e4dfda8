"""Tokenizers: text to ids and back."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Self, cast

from seqgen.data.dictionary import Dictionary
from seqgen.errors import DataError
from seqgen.files import new_folder, write_atomically
from seqgen.reading import parse_json, read_bytes
from seqgen.registry import Registry

TOKENIZERS = Registry("tokenizer", "tokenizer")
TOKENIZERS.declare("sentencepiece", "seqgen.data.tokenizers.sentencepiece_tokenizer")
TOKENIZERS.declare("pretrained", "seqgen.data.tokenizers.pretrained")

register_tokenizer = TOKENIZERS.register

SENTINEL = "<extra_id_{}>"
"""The token of a sentinel; the placeholder is its number."""


class Tokenizer(ABC):
    """Turns a line of text into ids of a vocabulary, and ids into text.

    A subclass implements ``encode``, ``decode``, ``save`` and ``load``, and is registered by
    ``@register_tokenizer("name")``, so that ``load_tokenizer`` finds it. It must survive pickling: encoding a large
    text is done in worker processes.

    Args:
        dictionary: the vocabulary whose ids come out.
    """

    def __init__(self, dictionary: Dictionary):
        self.dictionary = dictionary

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without end-of-sentence.

        Args:
            text: one line.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text; special tokens are skipped."""

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """Encode many lines, in order; a tokenizer that has a faster way overrides this."""
        return [self.encode(line) for line in lines]

    def sample(self, text: str, seed: int) -> list[int]:
        """Segment text at random, where the tokenizer can; the same seed gives the same ids.

        Args:
            text: one line.
            seed: below ``2 ** 32``.
        """
        return self.encode(text)

    def unknown(self, text: str) -> list[str]:
        """What ``encode`` turns into the unknown token.

        Args:
            text: one line.

        Returns:
            The characters or words that the vocabulary lacks, in order, with repeats.
        """
        return []

    @cached_property
    def _sentinels(self) -> list[int]:
        ids = (self._find_sentinel(number) for number in count())
        return [index for index in takewhile(lambda index: index is not None, ids) if index is not None]

    def _find_sentinel(self, number: int) -> int | None:
        token = SENTINEL.format(number)
        # mT5's model has its sentinels among the pieces, with a space before them
        found = (self.dictionary.index(name) for name in (token, "▁" + token) if name in self.dictionary)
        return next(found, None)

    @property
    def num_sentinels(self) -> int:
        """Number of sentinels, the tokens ``<extra_id_0>``, ``<extra_id_1>``, … that stand for a span of text."""
        return len(self._sentinels)

    def sentinel(self, number: int) -> int:
        """Id of a sentinel.

        Args:
            number: its number, from 0.

        Raises:
            DataError: the vocabulary has no such sentinel.
        """
        if not 0 <= number < self.num_sentinels:
            raise DataError(
                f"the vocabulary has no {SENTINEL.format(number)}, only {self.num_sentinels} sentinels; "
                "use a tokenizer with more of them"
            )
        return self._sentinels[number]

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that changes whenever ``encode`` would give other ids."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write everything that ``load`` needs into a folder that is there; see ``save_tokenizer``."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """Read what ``save`` wrote.

        Args:
            folder: the folder.
            settings: the content of its ``tokenizer.json``.

        Raises:
            DataError: a file is missing or damaged.
        """


@register_tokenizer("whitespace")
class WhitespaceTokenizer(Tokenizer):
    """Text that is tokenized already: words are separated by white space."""

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``."""
        return [self.dictionary.word_index(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer.decode``."""
        dictionary = self.dictionary
        silent = {dictionary.pad(), dictionary.eos(), dictionary.bos()}
        return " ".join(dictionary.symbol(i) for i in ids if i not in silent)

    def unknown(self, text: str) -> list[str]:
        """See ``Tokenizer.unknown``."""
        unk = self.dictionary.unk()
        return [word for word in text.split() if self.dictionary.word_index(word) == unk]

    def fingerprint(self) -> str:
        """See ``Tokenizer.fingerprint``."""
        return f"whitespace:{self.dictionary.fingerprint()}"

    def save(self, folder: Path) -> None:
        """See ``Tokenizer.save``."""
        write_settings(folder, {"tokenizer": "whitespace"})
        self.dictionary.save(folder / "dictionary.json")

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """See ``Tokenizer.load``."""
        return cls(Dictionary.load(folder / "dictionary.json"))


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write ``tokenizer.json``.

    Args:
        folder: the tokenizer's folder.
        settings: ``tokenizer``, the name that it is registered with, and whatever its ``load`` wants.
    """
    write_atomically(folder / "tokenizer.json", json.dumps(settings, indent=2).encode())


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer into a new folder, all of it or nothing.

    Args:
        tokenizer: the tokenizer.
        folder: a folder that is not there yet.

    Raises:
        UserError: it cannot be written.
    """
    with new_folder(folder) as temporary:
        tokenizer.save(temporary)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read a tokenizer that ``save_tokenizer`` wrote.

    Args:
        folder: its folder, wherever it has been moved.

    Raises:
        DataError: a file is missing or damaged.
        ConfigError: it is of a kind that is not registered.
    """
    path = folder / "tokenizer.json"
    try:
        settings = parse_json(read_bytes(path))
        name = settings["tokenizer"]
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; {folder} is not the folder of a tokenizer") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is damaged; copy the folder again or train the tokenizer again") from None
    component = cast(type[Tokenizer], TOKENIZERS.entry(str(name)).component)
    return component.load(folder, settings)
