"""The sentences whose score changed most between two systems."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.comparison.measures import Measure
from seqgen.comparison.significance import System


@dataclass(frozen=True)
class Change:
    """A sentence of two systems.

    Attributes:
        sentence: its number, from 0.
        before: its score by the first system.
        after: its score by the other system.
    """

    sentence: int
    before: float
    after: float

    @property
    def difference(self) -> float:
        """By how much the other system's score is higher."""
        return self.after - self.before


def changes(first: System, other: System, chrf: Measure, count: int) -> list[Change]:
    """The sentences that changed most, in either direction.

    Args:
        first: the first system.
        other: the other one.
        chrf: the metric; unlike BLEU, chrF is defined for short sentences.
        count: maximum number of sentences.

    Returns:
        Those with the largest differences first; equal outputs are left out.
    """
    pairs = enumerate(zip(first.hypotheses, other.hypotheses, strict=True))
    found = [
        Change(number, chrf.score(first.hypotheses, [number]), chrf.score(other.hypotheses, [number]))
        for number, (before, after) in pairs
        if before != after
    ]
    return sorted(found, key=lambda change: -abs(change.difference))[:count]


def common_words(first: str, other: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The words of two lines, and whether each also occurs, in the same order, in the other line."""
    from difflib import SequenceMatcher

    words, others = first.split(), other.split()
    same = [False] * len(words), [False] * len(others)
    for start, place, size in SequenceMatcher(None, words, others, autojunk=False).get_matching_blocks():
        same[0][start : start + size] = same[1][place : place + size] = [True] * size
    return list(zip(words, same[0], strict=True)), list(zip(others, same[1], strict=True))
