"""A command that makes the file of ``generation.shortlist`` from parallel text.

``python examples/shortlist.py path=runs/a source=train.en target=train.de output=shortlist.txt`` writes the file. IBM
model 1 learns the translation probabilities of tokens from the text; the highest ones make the file.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqgen.extend import (
    CommonConfig,
    ConfigError,
    DataError,
    Dictionary,
    ReadingConfig,
    Task,
    check_output,
    load_model,
    log,
    new_file,
    option,
    read_lines,
    run,
    set_up_device,
)

Ids = npt.NDArray[np.int64]
Targets = Mapping[tuple[int, ...], Ids]
"""Ids of target tokens by sequence of source ids; those of the empty sequence belong to every source."""

DESCRIPTION = """writes for each source token of a model the target tokens that are its most probable translations in
parallel text, by IBM model 1. Decoding with generation.shortlist=FILE generates only those of the source's tokens.
The file has the format of CTranslate2's vmap.txt."""


@dataclass
class ShortlistConfig:
    """The configuration of the command."""

    path: str = option(
        "", "run folder or checkpoint of the model, whose tokenizer and vocabulary are used", role="input_path"
    )
    source: str = option(
        "", "text file in the source language, one sentence per line; .gz is decompressed", role="input_path"
    )
    target: str = option("", "the translations of its lines")
    output: str = option("", "file to write", role="output_path")
    best: int = option(100, "number of target tokens for each source token", minimum=0)
    frequent: int = option(100, "number of most frequent target tokens that every output may contain", minimum=0)
    iterations: int = option(5, "iterations of expectation maximization of IBM model 1", minimum=1)
    lines: int = option(500_000, "number of lines that are read; 0 for all", minimum=0)
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: CommonConfig = dataclasses.field(default_factory=CommonConfig)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(ShortlistConfig, shortlist, DESCRIPTION, argv)


def shortlist(cfg: ShortlistConfig) -> int:
    """Estimate translation probabilities, and write the best target tokens of each source token.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        UserError: a key is missing, or a file or the model cannot be used.
    """
    for key in ("path", "source", "target", "output"):
        if not getattr(cfg, key):
            raise ConfigError(f"{key} is missing: set path=RUN source=FILE target=FILE output=FILE")
    check_output("output", cfg.output, cfg.source, cfg.target)
    task = load_model(cfg.path, set_up_device(cfg.common), reading=cfg.reading).task
    sources, targets = _encoded(cfg, task)
    counts = Counter(itertools.chain.from_iterable(targets))
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    found = ibm_model_1(sources, targets, cfg.iterations).best(cfg.best)
    everywhere = np.array(ranked[: cfg.frequent], dtype=np.int64)
    table = {(): everywhere, **found}
    output = Path(cfg.output)
    if left_out := write_map(table, output, task.source_dictionary, task.target_dictionary):
        log(f"{left_out} tokens contain white space, which separates the tokens of the file, and are left out")
    print(f"{output}: {len(found)} source tokens from {len(sources)} lines, {len(everywhere)} frequent tokens")
    return 0


def write_map(table: Targets, path: Path, source: Dictionary, target: Dictionary) -> int:
    """Write the file of ``generation.shortlist``.

    Args:
        table: the target tokens by source tokens.
        path: the file.
        source: the source vocabulary.
        target: the target vocabulary.

    Returns:
        The number of tokens that are left out because they contain white space, which separates tokens.
    """
    left_out: set[tuple[str, str]] = set()

    def tokens(ids: Sequence[int], words: Dictionary, side: str) -> list[str]:
        symbols = [words.symbol(index) for index in ids]
        kept = [symbol for symbol in symbols if symbol and not any(mark in symbol for mark in " \t\n")]
        left_out.update((side, symbol) for symbol in symbols if symbol not in kept)
        return kept

    with new_file(path) as file:
        for key, ids in table.items():
            left = tokens(key, source, "source")
            right = tokens(ids.tolist(), target, "target")
            if len(left) == len(key):
                file.write(f"{' '.join(left)}\t{' '.join(right)}\n".encode())
    return len(left_out)


def _encoded(cfg: ShortlistConfig, task: Task) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of the lines of both files, without special tokens and tokens of languages.

    Every output may contain special tokens anyway. The token of a language would be a source word of every line.

    Raises:
        DataError: a file cannot be read, or the files have different numbers of lines, or none.
    """
    languages = task.source_tokenizer.languages
    left_out = {*task.source_dictionary.special_ids.values(), *(languages.ids.values() if languages else ())}
    special = set(task.target_dictionary.special_ids.values())
    sources: list[list[int]] = []
    targets: list[list[int]] = []
    for source, target in itertools.islice(_pairs(cfg), cfg.lines or None):
        sources.append([token for token in task.encode_source(source).tolist() if token not in left_out])
        targets.append([token for token in task.encode_target(target).tolist() if token not in special])
    if not sources:
        raise DataError(f"{cfg.source} has no lines; give parallel text from which the translations can be learned")
    return sources, targets


def _pairs(cfg: ShortlistConfig) -> Iterator[tuple[str, str]]:
    for source, target in itertools.zip_longest(read_lines(Path(cfg.source)), read_lines(Path(cfg.target))):
        if source is None or target is None:
            longer, shorter = (cfg.source, cfg.target) if target is None else (cfg.target, cfg.source)
            raise DataError(
                f"{longer} has more lines than {shorter}; line n of one file must be the translation of line n of the "
                "other"
            )
        yield source, target


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

    def best(self, count: int) -> Targets:
        """The ``count`` most probable target tokens of each source token, without the empty word."""
        order = np.lexsort((self.target, -self.probability, self.source))
        order = order[self.source[order] != self.null]
        owners, starts = np.unique(self.source[order], return_index=True)
        groups = np.split(self.target[order], starts[1:])
        return {(owner,): group[:count] for owner, group in zip(owners.tolist(), groups[: len(owners)], strict=True)}


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
            np.fromiter(itertools.chain.from_iterable((null, *source) for source, _ in pairs), np.int64),
            np.fromiter(itertools.chain.from_iterable(target for _, target in pairs), np.int64),
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


if __name__ == "__main__":
    main()
