"""IBM model 1: the probability that a source token is translated by a target token, learned from parallel text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from seqgen.data.vocabulary_map import VocabularyMap

Ids = npt.NDArray[np.int64]

_PAIRS_AT_ONCE = 4_000_000
"""Pairs of tokens that are counted at a time, which limits the memory."""


@dataclass(frozen=True)
class LexicalProbabilities:
    """The translation probabilities ``t(target | source)`` of all tokens that occur together in a pair of sentences.

    Attributes:
        source: ``(P,)`` ids of source tokens, ascending; ``null`` for the empty word.
        target: ``(P,)`` ids of target tokens, ascending for each source token.
        probability: ``(P,)`` float64; those of one source token sum to 1.
        null: the id of the empty word, to which target tokens without a translation are aligned.
    """

    source: Ids
    target: Ids
    probability: npt.NDArray[np.float64]
    null: int

    def best(self, count: int) -> VocabularyMap:
        """The ``count`` most probable target tokens of each source token, without the empty word."""
        order = np.lexsort((self.target, -self.probability, self.source))
        order = order[self.source[order] != self.null]
        owners, starts = np.unique(self.source[order], return_index=True)
        groups = np.split(self.target[order], starts[1:])
        return VocabularyMap(
            {(owner,): group[:count] for owner, group in zip(owners.tolist(), groups[: len(owners)], strict=True)}
        )


def ibm_model_1(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], iterations: int
) -> LexicalProbabilities:
    """Estimate the probabilities of IBM model 1 (Brown et al. 1993, section 4.2) by expectation maximization.

    Each target token is a translation of one token of the source, the empty word included. All probabilities are equal
    at the beginning. Each iteration computes how likely each source token is the origin of each target token, adds
    these numbers up for each pair of tokens, and normalizes the sums for each source token.

    Args:
        sources: ids of each source.
        targets: ids of its translation.
        iterations: how often the probabilities are estimated again.
    """
    tokens = 1 + max(map(max, filter(len, targets)), default=0)
    null = 1 + max(map(max, filter(len, sources)), default=0)
    batches = [_Batch.of(pairs, null) for pairs in _batches(sources, targets)]
    keys = np.unique(np.concatenate([np.zeros(0, np.int64), *(np.unique(batch.keys(tokens)) for batch in batches)]))
    source, target = np.divmod(keys, tokens)
    probability = np.ones(len(keys))
    for _ in range(iterations):
        counts = np.zeros(len(keys))
        for batch in batches:
            pairs = np.searchsorted(keys, batch.keys(tokens))
            share = probability[pairs]
            share /= batch.sums_for_each_target(share)
            counts += np.bincount(pairs, share, len(keys))
        totals = np.bincount(source, counts)
        probability = counts / totals[source]
    return LexicalProbabilities(source, target, probability, null)


@dataclass(frozen=True)
class _Batch:
    """Sentence pairs as flat arrays.

    For a source ``a b`` with the translation ``x y`` and the empty word ``0``, the pairs of tokens are ``0x ax bx 0y ay
    by``: ``widths`` is ``3 3``, ``starts`` is ``0 0``.

    Attributes:
        source: all source tokens, those of each sentence after the empty word.
        target: all target tokens.
        starts: for each target token, where its sentence begins in ``source``.
        widths: for each target token, the number of tokens of its sentence in ``source``.
    """

    source: Ids
    target: Ids
    starts: Ids
    widths: Ids

    @classmethod
    def of(cls, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], null: int) -> _Batch:
        widths = np.array([1 + len(source) for source, _ in pairs])
        lengths = [len(target) for _, target in pairs]
        return cls(
            np.fromiter(chain.from_iterable((null, *source) for source, _ in pairs), np.int64),
            np.fromiter(chain.from_iterable(target for _, target in pairs), np.int64),
            np.repeat(np.cumsum(widths) - widths, lengths),
            np.repeat(widths, lengths),
        )

    def keys(self, tokens: int) -> Ids:
        """One number for each pair of tokens: ``source * tokens + target``."""
        first = np.cumsum(self.widths) - self.widths
        places = np.arange(self.widths.sum()) + np.repeat(self.starts - first, self.widths)
        keys: Ids = self.source[places] * tokens + np.repeat(self.target, self.widths)
        return keys

    def sums_for_each_target(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """For each pair, the sum of the values of all pairs with the same target token."""
        number = np.repeat(np.arange(len(self.widths)), self.widths)
        return np.bincount(number, values).astype(np.float64)[number]


def _batches(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> Iterator[list[tuple[Sequence[int], Sequence[int]]]]:
    batch: list[tuple[Sequence[int], Sequence[int]]] = []
    pairs = 0
    for source, target in zip(sources, targets, strict=True):
        if not source or not target:
            continue
        batch.append((source, target))
        pairs += (1 + len(source)) * len(target)
        if pairs >= _PAIRS_AT_ONCE:
            yield batch
            batch, pairs = [], 0
    if batch:
        yield batch
