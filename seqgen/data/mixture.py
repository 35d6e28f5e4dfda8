"""Mixtures of datasets: sampling rates and the examples drawn (Raffel et al. 2020, section 3.5.2)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from seqgen.data.collate import Example
from seqgen.data.pair_dataset import PairDataset
from seqgen.errors import ConfigError

MIXINGS = ("proportional", "equal", "temperature", "rates")

_GOLDEN = (math.sqrt(5) - 1) / 2


def mixing_rates(
    sizes: Sequence[int],
    mixing: str,
    *,
    size_limit: int = 0,
    temperature: float = 1.0,
    rates: Sequence[float] = (),
) -> list[float]:
    """The sampling rate of each dataset in a mixture.

    Sizes 100 and 900 with a limit of 300 give the rates 0.25 and 0.75. With a temperature of 2, rates are proportional
    to the square roots of the limited sizes: 0.366 and 0.634.

    Args:
        sizes: number of examples of each dataset.
        mixing: ``proportional`` to the sizes, ``equal``, ``temperature`` (sizes to the power of ``1 / temperature``),
            or ``rates`` as they are given.
        size_limit: upper limit of each size (``proportional`` and ``temperature``); 0 for no limit.
        temperature: 1 for proportional rates; higher values make rates more equal.
        rates: the rates for ``mixing="rates"``, relative to each other.

    Returns:
        Rates that sum to one.
    """
    limited = [min(size, size_limit) if size_limit else size for size in sizes]
    weights: dict[str, Sequence[float]] = {
        "proportional": limited,
        "equal": [1.0] * len(sizes),
        "temperature": [size ** (1.0 / temperature) for size in limited],
        "rates": rates,
    }
    total = sum(weights[mixing])
    return [weight / total for weight in weights[mixing]]


def draws(rates: Sequence[float], size: int, epoch: int) -> NDArray[np.int64]:
    """Numbers of examples that an epoch and all epochs before it draw from each dataset.

    The interval from 0 to 1 is divided into one segment per dataset, whose length is the dataset's rate. An epoch has
    ``size`` evenly spaced points in the interval; each point draws an example from the dataset in whose segment it is.
    Every epoch shifts the points by the golden ratio times their distance. Therefore the numbers of an epoch sum to
    ``size``, each differs from ``rate * size`` by less than one, and their mean over epochs converges to it.

    Args:
        rates: the sampling rates, which sum to one.
        size: number of examples of an epoch.
        epoch: its number, from 1.

    Returns:
        ``(2, len(rates))`` int64: examples of all earlier epochs together, and of this epoch.
    """
    edges = np.append(0.0, np.cumsum(rates)) * size
    edges[-1] = size
    shifts = (np.arange(1, epoch + 1) * _GOLDEN) % 1.0
    counts = np.diff(np.ceil(edges[None, :] - shifts[:, None]), axis=1).astype(np.int64)
    return np.stack([counts[:-1].sum(0), counts[-1]])


class JoinedDataset:
    """Several datasets, concatenated.

    Args:
        parts: the datasets by name.
    """

    def __init__(self, parts: Mapping[str, PairDataset]):
        self.parts = dict(parts)
        self.offsets = np.append(0, np.cumsum([len(part) for part in self.parts.values()]))
        # ids continue from one part to the next, so that they are unique
        self.first_ids = np.append(0, np.cumsum([len(part.source.store) for part in self.parts.values()]))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def lengths(self, epoch: int = 0, seed: int = 0) -> NDArray[np.int32]:
        """``(n, sides)`` tokens of each example."""
        return np.concatenate([part.lengths(epoch, seed) for part in self.parts.values()])

    def example(self, position: int, *, epoch: int, seed: int) -> Example:
        """The example at a position of the concatenation; see ``Dataset.example``."""
        number = int(np.searchsorted(self.offsets, position, side="right")) - 1
        return self._example(number, position - int(self.offsets[number]), epoch, seed)

    def _example(self, number: int, position: int, epoch: int, seed: int) -> Example:
        part = list(self.parts.values())[number]
        example = part.example(position, epoch=epoch, seed=seed)
        return example._replace(id=example.id + int(self.first_ids[number]))

    def limited(self, max_source_positions: int | None, max_target_positions: int | None) -> JoinedDataset:
        """The same parts under limits that are equal or lower; see ``PairDataset.limited``."""
        return JoinedDataset(self._limited_parts(max_source_positions, max_target_positions))

    def _limited_parts(self, source: int | None, target: int | None) -> dict[str, PairDataset]:
        return {name: part.limited(source, target) for name, part in self.parts.items()}

    def report(self) -> list[str]:
        """The notes of all parts."""
        return [sentence for part in self.parts.values() for sentence in part.report()]


class MixtureDataset(JoinedDataset):
    """Draws examples from several datasets at given rates.

    Each dataset is read repeatedly, each time in a new random order. An epoch continues where the previous one stopped,
    so that all examples of a dataset are drawn before one is repeated. The examples of an epoch depend only on the seed
    and the epoch.

    Args:
        parts: the datasets by name.
        rates: the sampling rate of each, relative to each other.
        size: number of examples of an epoch; 0 for the number of examples of all parts.

    Raises:
        ConfigError: a rate is not positive and finite.
    """

    def __init__(self, parts: Mapping[str, PairDataset], rates: Sequence[float], size: int = 0):
        super().__init__(parts)
        for name, rate in zip(self.parts, rates, strict=True):
            if not 0 < rate < math.inf:
                raise ConfigError(
                    f"the source {name!r} has the rate {rate}, which must be above zero; remove the source or give it "
                    "a positive rate"
                )
        self.rates = [rate / sum(rates) for rate in rates]
        self.size = size or int(self.offsets[-1])
        self._drawn = functools.lru_cache(maxsize=2)(self._draw)

    def __len__(self) -> int:
        return self.size

    def _draw(self, epoch: int, seed: int) -> NDArray[np.int64]:
        """``(size, 2)`` int64: the part, and the position within it, of each example of an epoch."""
        before, now = draws(self.rates, self.size, epoch)
        rows = []
        for number, part in enumerate(self.parts.values()):
            drawn = np.arange(before[number], before[number] + now[number])
            passes, positions = np.divmod(drawn, len(part))
            for current in np.unique(passes):
                order = np.random.default_rng([seed, number, current]).permutation(len(part))
                positions[passes == current] = order[positions[passes == current]]
            rows.append(np.stack([np.full(len(positions), number), positions], axis=1))
        return np.concatenate(rows)

    def lengths(self, epoch: int = 1, seed: int = 0) -> NDArray[np.int32]:
        """``(size, sides)`` tokens of each example that the epoch draws; see ``Dataset.lengths``."""
        number, position = self._drawn(epoch, seed).T
        every = super().lengths(epoch, seed)
        drawn: NDArray[np.int32] = every[self.offsets[number] + position]
        return drawn

    def example(self, position: int, *, epoch: int, seed: int) -> Example:
        """An example that the epoch draws; see ``Dataset.example``."""
        number, within = self._drawn(epoch, seed)[position].tolist()
        return self._example(number, within, epoch, seed)

    def limited(self, max_source_positions: int | None, max_target_positions: int | None) -> MixtureDataset:
        """The same mixture, with lower or equal limits for its parts."""
        parts = self._limited_parts(max_source_positions, max_target_positions)
        return MixtureDataset(parts, self.rates, self.size)
