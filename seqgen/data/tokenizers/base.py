"""The base class of tokenizers, saving and loading them, and the tokenizer of text that is already tokenized.

The bytes of single tokens are known for tokenizers that spell them in one of two ways: SentencePiece's and GPT-2's.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Self, cast

from seqgen.core.contract import Flagged
from seqgen.core.errors import ConfigError, DataError, shown
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.languages import AddedTokens, Languages
from seqgen.registry import Registry
from seqgen.system.error_messages import reading_errors
from seqgen.system.files import new_folder, write_atomically
from seqgen.system.reading import parse_json, read_bytes

SPACE = "▁"
"""The character by which SentencePiece marks a space."""
_FALLBACK = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}

TOKENIZERS = Registry("tokenizer", "tokenizer")
TOKENIZERS.declare("sentencepiece", "seqgen.data.tokenizers.sentencepiece_tokenizer")
TOKENIZERS.declare("pretrained", "seqgen.data.tokenizers.pretrained")
TOKENIZERS.declare("language_tokens", "seqgen.data.tokenizers.language_tokens")
TOKENIZERS.declare("ids", "seqgen.data.tokenizers.base")

register_tokenizer = TOKENIZERS.register

SENTINEL = "<extra_id_{}>"
"""The token of a sentinel; the placeholder is its number."""


class Tokenizer(Flagged, ABC):
    """Turns a line of text into ids of a vocabulary, and ids into text.

    A subclass implements ``encode``, ``decode``, ``fingerprint``, ``save`` and ``load``. It is registered by
    ``@register_tokenizer("name")``, so that ``load_tokenizer`` finds it. It must be picklable, because worker
    processes encode large texts.

    Args:
        dictionary: the vocabulary of the ids that ``encode`` returns.
    """

    def __init__(self, dictionary: Dictionary):
        self.dictionary = dictionary

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without end-of-sentence.

        Args:
            text: one line.

        Returns:
            The ids; an empty list for a text without tokens.
        """

    whole_words: bool = False
    """True if each token is a word."""

    languages: Languages | None = None
    """The languages of a multilingual tokenizer, between which sources and targets choose; ``None`` for any other."""

    @property
    def target_side(self) -> Tokenizer:
        """The tokenizer of the target, if it was read from the same files as that of the source; by default itself."""
        return self

    def encode_source(self, text: str, source_lang: str = "", target_lang: str = "") -> list[int]:
        """Turn a source into ids, with all tokens that the model expects.

        Args:
            text: one line.
            source_lang: code of its language; empty for the tokenizer's default.
            target_lang: code of the language of the output; empty for none.

        Returns:
            The ids, with end-of-sentence.
        """
        return self.source_tokens(source_lang, target_lang).around(self.encode(text))

    def source_tokens(self, source_lang: str = "", target_lang: str = "") -> AddedTokens:
        """The tokens that ``encode_source`` adds to a text.

        Args:
            source_lang: code of the text's language; empty for the tokenizer's default.
            target_lang: code of the language of the output; empty for none.
        """
        eos = self.dictionary.eos()
        if self.languages is None:
            return AddedTokens([], [eos])
        return self.languages.source_tokens(eos, source_lang, target_lang)

    def encode_target(self, text: str, target_lang: str = "") -> list[int]:
        """Turn a target into ids, with all tokens that the model generates.

        Args:
            text: one line.
            target_lang: code of its language; empty for the tokenizer's default.

        Returns:
            The ids, with end-of-sentence.
        """
        language = target_lang or (self.languages.target_lang if self.languages is not None else "")
        return self.target_tokens(language).around(self.encode(text))

    def target_tokens(self, target_lang: str = "") -> AddedTokens:
        """The tokens that are added to a target: the beginning of every target, by default none, and end-of-sentence.

        Args:
            target_lang: code of the target's language; empty for none.
        """
        before = [] if self.languages is None else self.languages.beginning(target_lang)
        return AddedTokens(before, [self.dictionary.eos()])

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text.

        Args:
            ids: ids of the vocabulary; special tokens such as padding are skipped.

        Returns:
            The detokenized text.
        """

    def special_text(self, index: int) -> str:
        """The string of a special token, which ``decode`` leaves out.

        Args:
            index: its id.

        Returns:
            The string; empty for any other token, and for all tokens if the tokenizer does not implement this.
        """
        return ""

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """Encode many lines; a tokenizer that can do this faster than line by line overrides it.

        Args:
            lines: the lines.

        Returns:
            The ids of each line, in order, as ``encode`` returns them.
        """
        return [self.encode(line) for line in lines]

    def unknown(self, text: str) -> list[str]:
        """The parts of a text that ``encode`` maps to the unknown token; by default none.

        Args:
            text: one line.

        Returns:
            The characters or words that are not in the vocabulary, in the order of the text, repetitions included.
        """
        return []

    def token_bytes(self) -> list[bytes | None]:
        """The UTF-8 bytes that each token adds to a text, for ensembles of members with different vocabularies.

        The tokens of a text give the text itself, or the text after one space.

        Returns:
            The bytes of each id; ``None`` for a token without text, such as padding.

        Raises:
            ConfigError: the tokenizer does not implement this.
        """
        raise ConfigError(
            f"{type(self).__name__} does not return the bytes of its tokens, which members with different target "
            "vocabularies need to agree on a text; implement its token_bytes, or remove this model"
        )

    @cached_property
    def sentinels(self) -> list[int]:
        """The ids of the sentinels: the tokens ``<extra_id_0>``, ``<extra_id_1>``, … that replace spans of text."""
        ids: list[int] = []
        for token in map(SENTINEL.format, count()):
            # in mT5's model the sentinels are ordinary pieces that begin with a space
            found = [name for name in (token, SPACE + token) if name in self.dictionary]
            if not found:
                break
            ids.append(self.dictionary.index(found[0]))
        return ids

    def sentinel(self, number: int) -> int:
        """Id of a sentinel.

        Args:
            number: its number, from 0.

        Raises:
            DataError: the vocabulary has no such sentinel.
        """
        if not 0 <= number < len(self.sentinels):
            raise DataError(
                f"the vocabulary has no {SENTINEL.format(number)}, only {len(self.sentinels)} sentinels; "
                "use a tokenizer with more of them"
            )
        return self.sentinels[number]

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of everything that ``encode`` depends on; tokenizers that give different ids have different hashes."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write everything that ``load`` needs; ``save_tokenizer`` calls this.

        Args:
            folder: an existing folder.
        """

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """Read what ``save`` wrote.

        Args:
            folder: the folder.
            settings: the content of its ``tokenizer.json``.

        Returns:
            The tokenizer.

        Raises:
            DataError: a file is missing or damaged.
        """


@register_tokenizer("whitespace")
class WhitespaceTokenizer(Tokenizer):
    """A tokenizer for text that is already tokenized: words are separated by white space."""

    whole_words = True
    name = "whitespace"
    """The name under which the class is registered."""

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

    def token_bytes(self) -> list[bytes | None]:
        """See ``Tokenizer.token_bytes``; each word follows a space."""
        silent = set(self.dictionary.special_ids.values())
        return [None if i in silent else f" {word}".encode() for i, word in enumerate(self.dictionary)]

    def fingerprint(self) -> str:
        """See ``Tokenizer.fingerprint``."""
        return f"{self.name}:{self.dictionary.fingerprint()}"

    def save(self, folder: Path) -> None:
        """See ``Tokenizer.save``."""
        write_settings(folder, {"tokenizer": self.name})
        self.dictionary.save(folder / "dictionary.json")

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """See ``Tokenizer.load``."""
        return cls(Dictionary.load(folder / "dictionary.json"))


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write ``tokenizer.json``.

    Args:
        folder: the tokenizer's folder.
        settings: ``tokenizer``, the name that the tokenizer is registered under, and what its ``load`` needs.
    """
    write_atomically(folder / "tokenizer.json", json.dumps(settings, indent=2))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer into a new folder; if writing fails, there is no folder.

    Args:
        tokenizer: the tokenizer.
        folder: the folder, which must not exist yet.

    Raises:
        UserError: the folder cannot be written.
    """
    with new_folder(folder) as temporary:
        tokenizer.save(temporary)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read a tokenizer that ``save_tokenizer`` wrote.

    Args:
        folder: its folder, which may have been moved.

    Returns:
        The tokenizer, of the class that is registered under the name in ``tokenizer.json``.

    Raises:
        DataError: a file is missing or damaged.
        ConfigError: no tokenizer is registered under the name in ``tokenizer.json``.
    """
    path = folder / "tokenizer.json"
    try:
        with reading_errors(path, DataError, f"there is no file {path}; {folder} is not the folder of a tokenizer"):
            settings = parse_json(read_bytes(path))
        name = settings["tokenizer"]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is damaged; copy the folder again or train the tokenizer again") from None
    component = cast(type[Tokenizer], TOKENIZERS.entry(str(name)).component)
    return component.load(folder, settings)


def of_spaced_pieces(pieces: Sequence[str | None], silent: Collection[int | None]) -> list[bytes | None]:
    """The bytes of SentencePiece's pieces: ``▁`` is a space, and ``<0xE4>`` a byte if all 256 bytes are pieces.

    Args:
        pieces: the piece of each id; ``None`` for an unused id.
        silent: ids without text.
    """
    fallback = _FALLBACK if set(pieces) >= set(_FALLBACK) else {}
    return [
        (fallback.get(piece) or piece.replace(SPACE, " ").encode()) if piece and i not in silent else None
        for i, piece in enumerate(pieces)
    ]


def of_byte_characters(tokens: Sequence[str | None], silent: Collection[int | None]) -> list[bytes | None]:
    """The bytes of GPT-2's tokens, in which every byte is written as a printable character: ``Ġ`` is a space.

    Args:
        tokens: the token of each id; ``None`` for an unused id.
        silent: ids without text.
    """
    # printable bytes stand for themselves; the n-th of the others is the character 256 + n
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    return [
        bytes(map(byte_of.__getitem__, token)) if token and i not in silent and byte_of.keys() >= set(token) else None
        for i, token in enumerate(tokens)
    ]


_LONGEST = 18
"""Maximum digits of an id; longer numbers are not ids of any vocabulary, and take long to read."""


@register_tokenizer("ids")
class IdTokenizer(WhitespaceTokenizer):
    """The tokenizer of a model that is decoded by ids: a word is the id of a token, from 0.

    A source has exactly the given ids, end-of-sentence included. A target gets end-of-sentence, which it must not have.
    """

    name = "ids"

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``.

        Raises:
            DataError: a word is no id.
        """
        return read_ids(text, len(self.dictionary), "reading.tokenizer=ids")

    def encode_source(self, text: str, source_lang: str = "", target_lang: str = "") -> list[int]:
        """See ``Tokenizer.encode_source``; nothing is added."""
        return self.encode(text)

    def encode_target(self, text: str, target_lang: str = "") -> list[int]:
        """See ``Tokenizer.encode_target``.

        Raises:
            DataError: a word is no id, or is that of end-of-sentence.
        """
        ids, eos = self.encode(text), self.dictionary.eos()
        if eos in ids:
            raise DataError(f"the target {shown(text)} has the id {eos} of end-of-sentence, which is added; remove it")
        return [*ids, eos]

    def unknown(self, text: str) -> list[str]:
        """See ``Tokenizer.unknown``; there are none, because ``encode`` refuses them."""
        return []


def is_id(word: str, size: int) -> bool:
    """True if a word is the id of a token.

    Args:
        word: any text.
        size: size of the vocabulary.
    """
    return len(word) <= _LONGEST and word.isdecimal() and int(word) < size


def read_ids(text: str, size: int, where: str) -> list[int]:
    """The ids in a text.

    Args:
        text: ids separated by white space.
        size: size of the vocabulary.
        where: the place of the text, for the message.

    Raises:
        DataError: a word is not an id of the vocabulary.
    """
    words = text.split()
    for word in words:
        if not is_id(word, size):
            raise DataError(f"{where}: each word must be the id of a token, from 0 to {size - 1}, not {shown(word)}")
    return list(map(int, words))
