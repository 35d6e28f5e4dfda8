"""Raw text with noise, which each epoch makes anew."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from seqgen.addons.mixtures.noising import NoiseTokens, Objective, check_sentinels
from seqgen.extend import Example, TextDataset, TokenStore


class NoisyTextDataset(TextDataset):
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

    size_key = "task.input_length"

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
        self.objective, self.noise_tokens, self.fixed = objective, noise_tokens, fixed
        ends: NDArray[np.int64] = store.offsets[[0, -1]] if concatenate else store.offsets
        documents = np.stack([ends[:-1], ends[1:]], axis=1)
        super().__init__(store, documents, objective.raw_length(input_length), name)
        sizes, kinds = np.unique(self.bounds[:, 1] - self.bounds[:, 0], return_inverse=True)
        check_sentinels(objective.sentinels_needed(int(sizes[-1])), len(noise_tokens.sentinels))
        self._lengths = np.array([objective.lengths(int(size)) for size in sizes], np.int32)[kinds]

    def lengths(self, epoch: int = 0, seed: int = 0) -> NDArray[np.int32]:
        """``(n, 2)`` maximum tokens of the input and the target of each piece, end-of-sentence included."""
        return self._lengths

    def text(self, position: int) -> NDArray[np.int64]:
        """``(tokens,)`` the ids of a piece without noise."""
        return self.store.values[slice(*self.bounds[position])].astype(np.int64)

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

    def report(self) -> list[str]:
        """A note with the number of unknown tokens and an example; an empty list if there are none."""
        return self.store.unknown_note(f"documents of {self.name}", "pieces")
