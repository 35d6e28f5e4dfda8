"""The dataset of denoising: raw text from which each epoch makes new examples."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from seqgen.data.collate import Example
from seqgen.data.noising import NoiseTokens, Objective, check_sentinels
from seqgen.data.token_store import TokenStore
from seqgen.errors import ConfigError, DataError


class NoisyTextDataset:
    """Pieces of raw text, from each of which a denoising objective makes an input and a target.

    The documents are concatenated and cut into pieces whose inputs have ``input_length`` tokens, as in the code of
    Raffel et al. (2020), or each document is cut separately.

    Args:
        store: the ids of each document, without end-of-sentence.
        objective: makes the input and the target of a piece.
        noise_tokens: ids of end-of-sentence, sentinels and words.
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
        self.starts, self.stops = _cut(store, objective.raw_length(input_length), concatenate)
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
                    f"{limit} positions; give a smaller task.input_length or a model with more positions"
                )
        return self

    def report(self) -> list[str]:
        """A note with the number of unknown tokens and an example; an empty list if there are none."""
        return self.store.unknown_note(f"documents of {self.name}", "pieces")


def _cut(store: TokenStore, size: int, concatenate: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
