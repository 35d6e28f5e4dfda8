"""Raw text, cut into examples; those of a language model."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from seqgen.core.errors import ConfigError, DataError
from seqgen.data.pair_dataset import Dataset, Example
from seqgen.data.token_store import TokenStore

BREAK_MODES = ("none", "complete", "complete_doc", "eos")
"""fairseq's names of the ways to cut a text into examples; see ``BlockDataset``."""


def _cut(pieces: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Cut ``(n, 2)`` begins and ends into parts of a size, of which the last one of a piece can be shorter.

    Pieces ``0-5 5-8``, cut into parts of 4, are ``0-4 4-5 5-8``.
    """
    counts = -(-(pieces[:, 1] - pieces[:, 0]) // size)  # rounded up
    begins, ends = np.repeat(pieces, counts, axis=0).T
    starts = begins + size * (np.arange(len(begins)) - np.repeat(np.cumsum(counts) - counts, counts))
    return np.stack([starts, np.minimum(starts + size, ends)], axis=1)


class TextDataset(Dataset):
    """Examples that are made of pieces of a text.

    Args:
        store: the ids of each line or document, without end-of-sentence.
        pieces: ``(n, 2)`` begin and end of each part of the text whose tokens belong together.
        size: most tokens of an example; longer pieces are cut.
        name: the split's name, for messages.

    Attributes:
        bounds: ``(n, 2)`` begin and end of each example in the text.

    Raises:
        DataError: the text has no token.
    """

    size_key = ""
    """The key that sets the length of the examples."""

    def __init__(self, store: TokenStore, pieces: NDArray[np.int64], size: int, name: str):
        self.store, self.bounds, self.name = store, _cut(pieces, size), name
        if not store.lengths().any():
            files = ", ".join(file for file, _ in store.meta.files[:3])
            raise DataError(f"{name}: {files} contains no token; give a text with at least one word")

    def __len__(self) -> int:
        return len(self.bounds)

    def lengths(self, epoch: int = 0, seed: int = 0) -> NDArray[np.int32]:
        """``(n, 2)`` maximum tokens of the source and of the target of each example; see ``Dataset.lengths``."""
        raise NotImplementedError

    def limited(self, max_source_positions: int | None, max_target_positions: int | None) -> Self:
        """This dataset, after a check that its examples are within a model's limits.

        Args:
            max_source_positions: maximum source tokens, end-of-sentence included; ``None`` for no limit.
            max_target_positions: maximum target tokens, likewise.

        Raises:
            ConfigError: a source or a target may be longer.
        """
        limits = (("source", max_source_positions), ("target", max_target_positions))
        for longest, (side, limit) in zip(self.lengths().max(0).tolist(), limits, strict=True):
            if limit is not None and longest > limit:
                raise ConfigError(
                    f"{self.size_key} makes examples of up to {longest} {side} tokens, but the model has only {limit} "
                    f"positions; set a smaller {self.size_key} or a model with more positions"
                )
        return self


class BlockDataset(TextDataset):
    """A text, cut into examples of consecutive tokens.

    The text is the lines one after the other, each with end-of-sentence at its end. The source of an example is the
    token before its first one, or ``begin`` at the beginning of a line; its target is its tokens. Cut into blocks of 3
    tokens, the lines ``a b`` and ``c d`` (e: end-of-sentence, s: ``begin``) are the examples ``s -> a b e`` and
    ``s -> c d e``; in blocks of 4, ``s -> a b e c`` and ``c -> d e``.

    Args:
        store: the ids of each line, without end-of-sentence.
        eos: id of end-of-sentence.
        begin: id of the token that precedes a line, such as end-of-sentence.
        break_mode: ``"none"``: blocks of equal size, whatever the lines; ``"complete"``: blocks of as many whole lines
            as fit; ``"complete_doc"``: the same, and an empty line, which separates documents, ends a block; ``"eos"``:
            one line is one example, and empty lines are skipped. Lines of more than ``block_size`` tokens are split.
        block_size: most tokens of an example.
        name: the split's name, for messages.

    Raises:
        DataError: the text has no token.
    """

    size_key = "task.tokens_per_sample"

    def __init__(self, store: TokenStore, eos: int, begin: int, break_mode: str, block_size: int, name: str = "data"):
        self.eos, self.begin = eos, begin
        lengths = store.lengths().astype(np.int64) + 1
        self.line_starts = np.concatenate([[0], np.cumsum(lengths)])
        if break_mode == "none":
            pieces = self.line_starts[[0, -1]].reshape(1, 2)
        elif break_mode == "eos":
            pieces = np.stack([self.line_starts[:-1], self.line_starts[1:]], axis=1)[lengths > 1]
        else:
            pieces = _whole_lines(lengths.tolist(), block_size, documents=break_mode == "complete_doc")
        super().__init__(store, pieces, block_size, name)

    def lengths(self, epoch: int = 0, seed: int = 0) -> NDArray[np.int32]:
        """``(n, 2)`` tokens of the source, which is always one, and of the target of each example."""
        sizes = self.bounds[:, 1] - self.bounds[:, 0]
        return np.stack([np.ones_like(sizes), sizes], axis=1).astype(np.int32)

    def example(self, position: int, *, epoch: int = 0, seed: int = 0) -> Example:
        """An example, which is the same in every epoch.

        Args:
            position: its index.
            epoch: not used.
            seed: not used.
        """
        start, stop = self.bounds[position].tolist()
        begins = self.line_starts[np.searchsorted(self.line_starts, start)] == start
        previous = np.array([self.begin]) if begins else self._tokens(start - 1, start)
        return Example(position, torch.from_numpy(previous), torch.from_numpy(self._tokens(start, stop)))

    def report(self) -> list[str]:
        """One sentence about unknown tokens; empty if there are none."""
        return self.store.unknown_note(f"lines of {self.name}", "characters or words")

    def _tokens(self, start: int, stop: int) -> NDArray[np.int64]:
        """The tokens ``start`` to ``stop`` of the text, ends of sentences included."""
        first, last = np.searchsorted(self.line_starts, [start, stop - 1], side="right") - 1
        lines = [[*self.store[line], self.eos] for line in range(first, last + 1)]
        text = np.array([token for line in lines for token in line], np.int64)
        return text[start - self.line_starts[first] : stop - self.line_starts[first]]


def _whole_lines(lengths: list[int], size: int, documents: bool) -> NDArray[np.int64]:
    """Blocks of as many whole lines as fit; with ``documents``, empty lines end a block and belong to none."""
    blocks: list[tuple[int, int]] = []
    begin = end = 0
    for length in lengths:
        separates = documents and length == 1
        if end > begin and (separates or end + length - begin > size):
            blocks.append((begin, end))
            begin = end
        end += length
        begin = end if separates else begin
    if end > begin:
        blocks.append((begin, end))
    return np.array(blocks, np.int64).reshape(-1, 2)
