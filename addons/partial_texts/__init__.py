"""The texts of partial outputs, which all components of a decode share; docs/extending.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from weakref import WeakValueDictionary

from torch import Tensor

from seqgen.extend import Component, ConfigError, Dictionary, Resources, StepContext, continuation

WINDOW = 16
"""Tokens with which the next one is decoded again, at least: a tokenizer then decodes it as in the whole output.

They are more than the tokens of a character, or of a text that is cleaned up, such as the space before a comma."""

KNOWN = 1 << 14
"""Texts that are kept, the last ones."""


class PartialTexts(Component):
    """The text of each row, also with each of its candidates: what the tokenizer decodes of all tokens.

    Texts are found by the tokens of the rows, and so follow beams, selections, forks and joins. A new token is decoded
    with 16 to 32 tokens before it. An output that ends inside a character ends as the tokenizer decodes it, usually
    with U+FFFD.

    Args:
        decode: turns ids into text.
        dictionary: their vocabulary.
    """

    can_merge = True

    def __init__(self, decode: Callable[[Sequence[int]], str], dictionary: Dictionary):
        self._decode = decode
        # tokens of bytes, if an incomplete character changes the text of all bytes before it
        found = {token: i for i, token in enumerate(dictionary) if re.fullmatch("<0x[0-9A-F]{2}>", token)}
        some = [found[token] for token in ("<0x41>", "<0xFF>") if token in found]
        self._bytes = set() if decode(some).startswith("A") else {*found.values()}
        self._text, self._beginning = lru_cache(KNOWN)(self._find_text), lru_cache(KNOWN)(self._find_beginning)

    @classmethod
    def of(cls, resources: Resources) -> PartialTexts:
        """The texts of the tokenizer of a decode: one object for all components.

        Args:
            resources: see ``Component.build``.

        Raises:
            ConfigError: the decode has no tokenizer.
        """
        if (decode := resources.decode) is None:
            raise ConfigError("the texts of partial outputs need a tokenizer, which this decode does not have")
        _SHARED[decode] = found = _SHARED.get(decode) or cls(decode, resources.dictionary)
        return found

    def texts(self, context: StepContext) -> list[str]:
        """The text of each row, without that of a prompt."""
        return [continuation(self.decode, *row) for row in _rows(context)]

    def peek(self, context: StepContext, tokens: Tensor) -> list[list[str]]:
        """The texts of each row with each of its candidates ``(rows, k)``; an end token adds no text."""
        pairs = zip(_rows(context), tokens.tolist(), strict=True)
        return [[continuation(self.decode, prompt, [*row, one]) for one in some] for (prompt, row), some in pairs]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, of which the first ones are usually known."""
        return self._text(tuple(ids))

    def _find_text(self, ids: tuple[int, ...]) -> str:
        begin, before = self._beginning(ids[: len(ids) - len(ids) % WINDOW])
        return before + self._decode(ids[begin:])

    def _find_beginning(self, ids: tuple[int, ...]) -> tuple[int, str]:
        """A number of ids whose text does not change any more, and this text; at least ``WINDOW`` ids follow."""
        if len(ids) <= WINDOW:
            return 0, ""
        begin, before = self._beginning(ids[:-WINDOW])
        whole, last, first = (self._decode(part) for part in (ids[begin:], ids[-WINDOW:], ids[-WINDOW:][:1]))
        # what follows a visible token that is not a byte changes no character and no space before that token
        if ids[-WINDOW] in self._bytes or not first.strip() or 2 * len(last) < WINDOW or not whole.endswith(last):
            return begin, before
        return len(ids) - WINDOW, before + whole.removesuffix(last)


_SHARED: WeakValueDictionary[Callable[[Sequence[int]], str], PartialTexts] = WeakValueDictionary()


def _rows(context: StepContext) -> list[tuple[list[int], list[int]]]:
    """The ids of the prompt of each row, and its tokens since its sentence joined the batch."""
    rows, prompts = context.tokens.tolist(), [list[int]()] * len(context.tokens)
    if context.sentences.continues_source and context.src_tokens is not None:
        prompts = [[token for token in prompt if token != context.pad] for prompt in context.src_tokens.tolist()]
    triples = zip(prompts, rows, context.steps.tolist(), strict=True)
    return [(prompt, row[len(row) - steps :]) for prompt, row, steps in triples]
