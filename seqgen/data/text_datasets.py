"""Datasets of raw text: examples for a language model, and examples of denoising, which each epoch makes anew."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from seqgen.core.errors import ConfigError, DataError
from seqgen.data.noising import NoiseTokens, Objective, check_sentinels
from seqgen.data.pair_dataset import Example
from seqgen.data.token_store import TokenStore

BREAK_MODES = ("none", "complete", "complete_doc", "eos")
"""fairseq's names of the ways to cut a text into examples; see ``BlockDataset``."""


class BlockDataset:
    """A text, cut into examples of consecutive tokens.

    The text is the lines one after the other, each with end-of-sentence at its end. The source of an example is the
    token before its first one, end-of-sentence at the beginning of the text; its target is its tokens. Cut into blocks
    of 3 tokens, the lines ``a b`` and ``c d`` (e: end-of-sentence) are the examples ``e -> a b e`` and ``e -> c d e``;
    in blocks of 4, ``e -> a b e c`` and ``c -> d e``.

    Args:
        store: the ids of each line, without end-of-sentence.
        eos: id of end-of-sentence.
        break_mode: ``"none"``: blocks of equal size, whatever the lines; ``"complete"``: blocks of as many whole lines
            as fit; ``"complete_doc"``: the same, and an empty line, which separates documents, ends a block; ``"eos"``:
            one line is one example, and empty lines are skipped. Lines of more than ``block_size`` tokens are split.
        block_size: most tokens of an example.
        name: the split's name, for messages.

    Raises:
        DataError: the text has no token.
    """

    def __init__(self, store: TokenStore, eos: int, break_mode: str, block_size: int, name: str = "data"):
        self.store, self.eos, self.name = store, eos, name
        self.break_mode, self.block_size = break_mode, block_size
        lengths = store.lengths().astype(np.int64) + 1
        if not (lengths > 1).any():
            files = ", ".join(file for file, _ in store.meta.files[:3])
            raise DataError(f"{name}: {files} contains no token; give a text with at least one word")
        self.line_starts = np.concatenate([[0], np.cumsum(lengths)])
        if break_mode == "none":
            pieces = [(0, int(self.line_starts[-1]))]
        elif break_mode == "eos":
            ends = self.line_starts[1:].tolist()
            pieces = [(end - size, end) for size, end in zip(lengths.tolist(), ends, strict=True) if size > 1]
        else:
            pieces = _whole_lines(lengths.tolist(), block_size, documents=break_mode == "complete_doc")
        starts = ((start, stop) for begin, stop in pieces for start in range(begin, stop, block_size))
        # begin and end of each example in the text
        self.bounds = np.array([(start, min(start + block_size, stop)) for start, stop in starts], np.int64)

    def __len__(self) -> int:
        return len(self.bounds)

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
        previous = self._tokens(start - 1, start) if start else np.array([self.eos])
        return Example(position, torch.from_numpy(previous), torch.from_numpy(self._tokens(start, stop)))

    def limited(self, max_source_positions: int | None, max_target_positions: int | None) -> BlockDataset:
        """The same dataset, if a model has enough positions for its blocks.

        Args:
            max_source_positions: not used: a source is one token.
            max_target_positions: longest target; ``None`` for no limit.

        Raises:
            ConfigError: the model has fewer positions.
        """
        longest = int((self.bounds[:, 1] - self.bounds[:, 0]).max())
        if max_target_positions is not None and longest > max_target_positions:
            raise ConfigError(
                f"task.tokens_per_sample makes examples of up to {longest} tokens, but the model has "
                f"{max_target_positions} positions; lower it, or raise model.max_target_positions"
            )
        return self

    def report(self) -> list[str]:
        """One sentence about unknown tokens; empty if there are none."""
        return self.store.unknown_note(f"lines of {self.name}", "characters or words")

    def _tokens(self, start: int, stop: int) -> NDArray[np.int64]:
        """The tokens ``start`` to ``stop`` of the text, ends of sentences included."""
        first, last = np.searchsorted(self.line_starts, [start, stop - 1], side="right") - 1
        lines = [[*self.store[line], self.eos] for line in range(first, last + 1)]
        text = np.array([token for line in lines for token in line], np.int64)
        return text[start - self.line_starts[first] : stop - self.line_starts[first]]


def _whole_lines(lengths: list[int], size: int, documents: bool) -> list[tuple[int, int]]:
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
    return [*blocks, (begin, end)] if end > begin else blocks


class NoisyTextDataset:
    """Pieces of raw text, from each of which a denoising objective makes an input and a target.

    The documents are concatenated and cut into pieces whose inputs have ``input_length`` tokens, as in the code of
    Raffel et al. (2020), or each document is cut separately.

    Args:
        store: the ids of each document, without end-of-sentence.
        objective: makes the input and the target of a piece.
        noise_tokens: ids of end-of-sentence and sentinels.
        input_length: maximum tokens of an input, end-of-sentence included.
        concatenate: whether documents are concatenated before they are cut.
        name: the split's name, for messages.
        fixed: whether the noise is the same for every epoch and seed, as validation needs it.

    Raises:
        DataError: the text has no tokens, or the objective needs more sentinels than the vocabulary has.
    """

    def __init__(
        self,
        store: TokenStore,
        objective: Objective,
        noise_tokens: NoiseTokens,
        input_length: int,
        *,
        concatenate: bool = True,
        name: str = "data",
        fixed: bool = False,
    ):
        self.store, self.objective, self.noise_tokens = store, objective, noise_tokens
        self.name, self.fixed = name, fixed
        self.starts, self.stops = _cut_documents(store, objective.raw_length(input_length), concatenate)
        if len(self.starts) == 0:
            files = ", ".join(file for file, _ in store.meta.files[:3])
            raise DataError(f"{name}: {files} has no tokens; give a text with at least one word")
        sizes, kinds = np.unique(self.stops - self.starts, return_inverse=True)
        check_sentinels(objective.sentinels_needed(int(sizes[-1])), len(noise_tokens.sentinels))
        self._lengths = np.array([objective.lengths(int(size)) for size in sizes], np.int32)[kinds]

    def __len__(self) -> int:
        return len(self.starts)

    def lengths(self, epoch: int = 0, seed: int = 0) -> NDArray[np.int32]:
        """``(n, 2)`` maximum tokens of the input and the target of each piece, end-of-sentence included."""
        return self._lengths

    def text(self, position: int) -> NDArray[np.int64]:
        """``(tokens,)`` the ids of a piece without noise."""
        return self.store.values[self.starts[position] : self.stops[position]].astype(np.int64)

    def example(self, position: int, *, epoch: int, seed: int) -> Example:
        """The input and the target of a piece.

        Args:
            position: index of the piece.
            epoch: number of the epoch.
            seed: seed of the noise.
        """
        rng = np.random.default_rng([position] if self.fixed else [seed, epoch, position])
        source, target = self.objective(self.text(position), self.noise_tokens, rng)
        return Example(position, torch.from_numpy(source), torch.from_numpy(target))

    def limited(self, max_source_positions: int | None, max_target_positions: int | None) -> NoisyTextDataset:
        """This dataset, after a check that its examples are within a model's limits.

        Args:
            max_source_positions: maximum source tokens, end-of-sentence included; ``None`` for no limit.
            max_target_positions: maximum target tokens, likewise.

        Raises:
            ConfigError: an input or a target may be longer.
        """
        limits = (("source", max_source_positions), ("target", max_target_positions))
        for longest, (side, limit) in zip(self._lengths.max(0).tolist(), limits, strict=True):
            if limit is not None and longest > limit:
                raise ConfigError(
                    f"task.input_length makes examples of up to {longest} {side} tokens, but the model has only "
                    f"{limit} positions; set a smaller task.input_length or a model with more positions"
                )
        return self

    def report(self) -> list[str]:
        """A note with the number of unknown tokens and an example; an empty list if there are none."""
        return self.store.unknown_note(f"documents of {self.name}", "pieces")


def _cut_documents(store: TokenStore, size: int, concatenate: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first position of each piece, and the position after its last.

    Documents of 5 and 3 tokens, cut into pieces of 4, give ``0-4 4-8`` if concatenated, otherwise ``0-4 4-5 5-8``.
    """
    offsets: NDArray[np.int64] = store.offsets
    if concatenate:
        offsets = offsets[[0, -1]]
    lengths = np.diff(offsets)
    pieces = -(-lengths // size)  # rounded up
    document = np.repeat(np.arange(len(lengths)), pieces)
    number = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = offsets[document] + number * size
    return starts, np.minimum(starts + size, offsets[document + 1])
