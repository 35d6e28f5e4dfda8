"""Vocabulary maps: the target tokens that are likely translations of each source token, as a text file.

The format is that of OpenNMT and CTranslate2 (``vmap.txt``). A line has a source token, a tab and target tokens with
spaces between them. A line that begins with the tab has tokens that every output may contain. A sequence of source
tokens, with spaces between them, counts where a source contains it.

IBM model 1 learns the translation probabilities of tokens from parallel text; their highest ones make a map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from seqgen.data.dictionary import Dictionary
from seqgen.data.text import read_lines
from seqgen.errors import DataError, shown
from seqgen.system.files import write_atomically

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class VocabularyMap:
    """Target tokens by source tokens.

    Attributes:
        targets: ids of target tokens by sequence of source ids; those of the empty sequence belong to every source.
    """

    targets: Mapping[tuple[int, ...], Ids]

    def of_source(self, source: Sequence[int]) -> list[Ids]:
        """The ids of the target tokens of each sequence that a source contains.

        Args:
            source: its ids.

        Returns:
            Arrays of ids, which may have ids in common.
        """
        longest = max(map(len, self.targets), default=0)
        spans = {tuple(source[i : i + size]) for size in range(1, longest + 1) for i in range(len(source) - size + 1)}
        return [self.targets[span] for span in ((), *spans) if span in self.targets]

    @classmethod
    def read(cls, path: Path, source: Dictionary, target: Dictionary) -> Self:
        """Read a file.

        Args:
            path: the file.
            source: the source vocabulary.
            target: the target vocabulary.

        Raises:
            DataError: the file cannot be read, a line does not have the format or occurs twice, or a token is not in
                the vocabulary.
        """
        found: dict[tuple[int, ...], Ids] = {}
        for number, line in enumerate(read_lines(path), start=1):
            where = f"{path}, line {number}"
            key, tab, value = line.partition("\t")
            if not tab or "\t" in value:
                raise DataError(
                    f"{where}: {shown(line)} is not SOURCE<tab>TARGET TARGET ...; make the file with "
                    "examples/shortlist.py"
                )
            ids = tuple(_ids(key, source, "source", where))
            if ids in found:
                raise DataError(f"{where}: there is another line for {shown(key)}; remove one of them")
            found[ids] = np.array(_ids(value, target, "target", where), dtype=np.int64)
        if not found:
            raise DataError(f"{path} is empty; make the file with examples/shortlist.py")
        return cls(found)

    def write(self, path: Path, source: Dictionary, target: Dictionary) -> int:
        """Write a file.

        Args:
            path: the file.
            source: the source vocabulary.
            target: the target vocabulary.

        Returns:
            The number of tokens that are left out because they contain white space, which separates tokens.
        """
        left_out: set[tuple[str, str]] = set()

        def tokens(ids: Sequence[int], words: Dictionary, side: str) -> list[str]:
            symbols = [words.symbol(index) for index in ids]
            left_out.update((side, symbol) for symbol in symbols if not _is_writable(symbol))
            return [symbol for symbol in symbols if _is_writable(symbol)]

        lines = []
        for key, ids in self.targets.items():
            left = tokens(key, source, "source")
            right = tokens(ids.tolist(), target, "target")
            if len(left) == len(key):
                lines.append(f"{' '.join(left)}\t{' '.join(right)}\n")
        write_atomically(path, "".join(lines))
        return len(left_out)


def _ids(text: str, words: Dictionary, side: str, where: str) -> list[int]:
    tokens = text.split(" ") if text else []
    if unknown := next((token for token in tokens if token not in words), None):
        raise DataError(
            f"{where}: {shown(unknown)} is not in the {side} vocabulary of the model; make a file for this model with "
            "examples/shortlist.py"
        )
    if "" in tokens:
        raise DataError(f"{where}: there must be exactly one space between two tokens; remove the others")
    return [words.index(token) for token in tokens]


def _is_writable(symbol: str) -> bool:
    return bool(symbol) and not any(mark in symbol for mark in " \t\n")


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
