"""Datasets that combine examples of others (Raffel et al. 2020).

A mixture draws from several datasets at sampling rates (section 3.5.2). A packed dataset puts several examples into one
row, so that a batch has little padding (section 3.1.2).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqgen.core.errors import ConfigError
from seqgen.core.structures import Batch, Segments, Source
from seqgen.data.pair_dataset import Dataset, Example, PairDataset, pad_rows

_GOLDEN = (math.sqrt(5) - 1) / 2


def mixing_rates(sizes: Sequence[int], temperature: float, size_limit: int = 0) -> list[float]:
    """The sampling rate of each dataset in a mixture: its size to the power of ``1 / temperature``.

    Sizes 100 and 900 with a limit of 300 give the rates 0.25 and 0.75. With a temperature of 2, rates are proportional
    to the square roots of the limited sizes: 0.366 and 0.634.

    Args:
        sizes: number of examples of each dataset.
        temperature: 1 for proportional rates; higher values make rates more equal.
        size_limit: upper limit of each size; 0 for no limit.

    Returns:
        Rates that sum to one.
    """
    limited = [min(size, size_limit) if size_limit else size for size in sizes]
    weights = [size ** (1.0 / temperature) for size in limited]
    return [weight / sum(weights) for weight in weights]


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


class JoinedDataset(Dataset):
    """Several datasets, concatenated.

    Args:
        parts: the datasets by name.

    Raises:
        ConfigError: a part has a state, which would not be saved.
    """

    def __init__(self, parts: Mapping[str, PairDataset]):
        self.parts = dict(parts)
        if stateful := [name for name, part in self.parts.items() if part.state_dict()]:
            raise ConfigError(f"the part {stateful[0]!r} of a mixture has a state_dict; give it to the mixture")
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
        part = list(self.parts.values())[number]
        example = part.example(position - int(self.offsets[number]), epoch=epoch, seed=seed)
        return example._replace(id=example.id + int(self.first_ids[number]))

    def limited(self, max_source_positions: int | None, max_target_positions: int | None) -> JoinedDataset:
        """The same parts under limits that are equal or lower; see ``PairDataset.limited``."""
        return type(self)(self._limited_parts(max_source_positions, max_target_positions))

    def _limited_parts(self, source: int | None, target: int | None) -> dict[str, PairDataset]:
        return {name: part.limited(source, target) for name, part in self.parts.items()}

    def report(self) -> list[str]:
        """The notes of all parts."""
        return [sentence for part in self.parts.values() for sentence in part.report()]


class MixtureDataset(JoinedDataset):
    """Draws examples from several datasets at given rates.

    Each dataset is read repeatedly, each time in a new random order. An epoch continues where the previous one stopped,
    so that all examples of a dataset are drawn before one is repeated. Its examples depend only on the seed, the epoch
    and the rates.

    Args:
        parts: the datasets by name.
        rates: the sampling rate of each, relative to each other.
        size: number of examples of an epoch; 0 for the number of examples of all parts.
    """

    def __init__(self, parts: Mapping[str, PairDataset], rates: Sequence[float], size: int = 0):
        super().__init__(parts)
        self.rates = [rate / sum(rates) for rate in rates]
        self.size = size or int(self.offsets[-1])
        self._last: tuple[Any, NDArray[np.int64]] = (None, np.empty(0, np.int64))

    def __len__(self) -> int:
        return self.size

    def _drawn(self, epoch: int, seed: int) -> NDArray[np.int64]:
        """What ``_draw`` returns; the last result is kept."""
        key, (known, drawn) = (epoch, seed, *self.rates), self._last
        if key != known:
            drawn = self._draw(epoch, seed)
            self._last = key, drawn
        return drawn

    def _draw(self, epoch: int, seed: int) -> NDArray[np.int64]:
        """``(size,)`` int64: the position of each example of an epoch in the concatenation of the parts."""
        before, now = draws(self.rates, self.size, epoch)
        rows = []
        for number, part in enumerate(self.parts.values()):
            drawn = np.arange(before[number], before[number] + now[number])
            passes, positions = np.divmod(drawn, len(part))
            for current in np.unique(passes):
                order = np.random.default_rng([seed, number, current]).permutation(len(part))
                positions[passes == current] = order[positions[passes == current]]
            rows.append(self.offsets[number] + positions)
        return np.concatenate(rows)

    def lengths(self, epoch: int = 1, seed: int = 0) -> NDArray[np.int32]:
        """``(size, sides)`` tokens of each example that the epoch draws; see ``Dataset.lengths``."""
        drawn: NDArray[np.int32] = super().lengths(epoch, seed)[self._drawn(epoch, seed)]
        return drawn

    def example(self, position: int, *, epoch: int, seed: int) -> Example:
        """An example that the epoch draws; see ``Dataset.example``."""
        return super().example(int(self._drawn(epoch, seed)[position]), epoch=epoch, seed=seed)

    def limited(self, max_source_positions: int | None, max_target_positions: int | None) -> MixtureDataset:
        """The same mixture, with lower or equal limits for its parts."""
        parts = self._limited_parts(max_source_positions, max_target_positions)
        return type(self)(parts, self.rates, self.size)


Row: TypeAlias = list[Example]
"""The examples that share a row."""


class PackedDataset(Dataset):
    """Rows that each contain several examples of a dataset, formed anew in each epoch.

    The examples are shuffled, and each row is filled with the next examples until one does not fit. The rows depend
    only on the data, the length, the seed and the epoch.

    Args:
        dataset: the examples, each with a target.
        length: maximum source tokens and maximum target tokens per row; a longer example gets a separate row.
    """

    def __init__(self, dataset: Dataset, length: int):
        self.dataset, self.length = dataset, length
        self._rows = functools.lru_cache(maxsize=2)(self._pack)

    def _pack(self, epoch: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shuffled examples, and the index of each row's first example followed by the number of examples."""
        order = np.random.default_rng([seed, epoch, 1]).permutation(len(self.dataset))
        ends = np.cumsum(self.dataset.lengths(epoch, seed)[order], axis=0, dtype=np.int64)
        starts = [0]
        while starts[-1] < len(order):
            begin = starts[-1]
            limits = (ends[begin - 1] if begin else 0) + np.array([self.length, self.length])
            fitting = (int(np.searchsorted(ends[:, side], limits[side], side="right")) for side in range(2))
            starts.append(max(begin + 1, min(fitting)))
        return order, np.array(starts)

    def __len__(self) -> int:
        """Number of examples, which is the same in every epoch."""
        return len(self.dataset)

    def state_dict(self) -> dict[str, Any]:
        """The state of the dataset."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the dataset."""
        self.dataset.load_state_dict(state)
        self._rows.cache_clear()

    def with_state(self, state: dict[str, Any]) -> PackedDataset:
        """A copy with a state; see ``Dataset.with_state``."""
        return PackedDataset(self.dataset.with_state(state), self.length)

    def lengths(self, epoch: int, seed: int) -> NDArray[np.int32]:
        """``(rows, 2)`` source and target tokens of each row."""
        order, starts = self._rows(epoch, seed)
        lengths = self.dataset.lengths(epoch, seed)[order]
        return np.add.reduceat(lengths, starts[:-1], axis=0).astype(np.int32)

    def example(self, position: int, *, epoch: int, seed: int) -> Row:
        """The examples of a row; see ``Dataset.example``."""
        order, starts = self._rows(epoch, seed)
        members = order[starts[position] : starts[position + 1]].tolist()
        return [self.dataset.example(member, epoch=epoch, seed=seed) for member in members]


def pack(rows: Sequence[Batch], source_pad: int, target_pad: int) -> Batch:
    """Pack each batch into one row of a new batch.

    Args:
        rows: a batch for each row, with the examples that share it; padded on the right, with targets.
        source_pad: id of padding in the source vocabulary.
        target_pad: id of padding in the target vocabulary.

    Returns:
        The batch, with ``segments``: source and target positions of the same example have the same number, from 1.
        Padding after a row's last target has that target's number, so that no position has only masked keys.

    Raises:
        ConfigError: the examples have columns.
    """
    if columns := sorted({name for row in rows for name in row.source.inputs}):
        raise ConfigError(f"dataset.pack=true is not possible with examples that have columns: {', '.join(columns)}")
    source_lengths, target_lengths = [row.source.src_lengths for row in rows], []
    targets, previous = [], []
    for row in rows:
        assert row.target is not None
        assert row.prev_output_tokens is not None
        # up to the last token that is not padding, since padding may also occur within a text
        positions = torch.arange(1, row.target.size(1) + 1)
        lengths = torch.where(row.target != target_pad, positions, 0).amax(1)
        targets.append(_unpadded(row.target, lengths))
        previous.append(_unpadded(row.prev_output_tokens, lengths))
        target_lengths.append(lengths)
    for target, lengths in zip(targets, target_lengths, strict=True):  # the last example has the padding of its row
        lengths[-1] += max(map(len, targets)) - len(target)
    sources = [_unpadded(row.source.src_tokens, row.source.src_lengths) for row in rows]
    return Batch(
        ids=torch.cat([row.ids for row in rows]),
        source=Source(pad_rows(sources, source_pad), torch.tensor([len(source) for source in sources])),
        prev_output_tokens=pad_rows(previous, target_pad),
        target=pad_rows(targets, target_pad),
        ntokens=sum(row.ntokens for row in rows),
        segments=Segments(_segments(source_lengths), _segments(target_lengths)),
    )


def _unpadded(tokens: Tensor, lengths: Tensor) -> Tensor:
    """The tokens of a batch concatenated without padding, ``(tokens,)``."""
    return tokens[torch.arange(tokens.size(1)) < lengths.unsqueeze(1)]


def _segments(lengths: Sequence[Tensor]) -> Tensor:
    """``(rows, tokens)``: the segment number of each token, by the lengths of each row's examples; 0 is padding."""
    return pad_rows([torch.arange(1, len(row) + 1).repeat_interleave(row) for row in lengths], 0)
