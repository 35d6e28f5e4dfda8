"""The tokenizer of text whose words are the ids of tokens."""

from __future__ import annotations

from seqgen.data.tokenizers.base import WhitespaceTokenizer, register_tokenizer
from seqgen.errors import DataError, shown

_LONGEST = 18
"""Digits of an id; longer numbers are no ids of a vocabulary, and take long to read."""


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
    """Whether a word is the id of a token.

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
