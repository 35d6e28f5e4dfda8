"""Packing: several examples share a row, so that a batch has little padding (Raffel et al. 2020, section 3.1.2)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqgen.data.collate import Example, pad_rows
from seqgen.data.pair_dataset import Dataset
from seqgen.structures import Batch, Segments, Source

Row: TypeAlias = list[Example]
"""The examples that share a row."""


class PackedDataset:
    """Rows that each contain several examples of a dataset, formed anew in each epoch.

    The examples are shuffled, and each row is filled with the next examples until one does not fit. The rows depend
    only on the data, the length, the seed and the epoch.

    Args:
        dataset: the examples, each with a target.
        length: maximum source tokens and maximum target tokens per row; a longer example gets a row of its own.
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
        ValueError: a batch has no targets.
    """
    sources, targets, previous = [], [], []
    for row in rows:
        if row.target is None or row.prev_output_tokens is None:
            raise ValueError("only examples with a target can share a row")
        sources.append(_Flat(row.source.src_tokens, row.source.src_lengths))
        lengths = _lengths(row.target, target_pad)
        targets.append(_Flat(row.target, lengths))
        previous.append(_Flat(row.prev_output_tokens, lengths))
    longest = max(len(flat.tokens) for flat in targets)
    return Batch(
        ids=torch.cat([row.ids for row in rows]),
        source=Source(
            pad_rows([flat.tokens for flat in sources], source_pad),
            torch.tensor([len(flat.tokens) for flat in sources]),
        ),
        prev_output_tokens=pad_rows([flat.tokens for flat in previous], target_pad),
        target=pad_rows([flat.tokens for flat in targets], target_pad),
        ntokens=sum(row.ntokens for row in rows),
        segments=Segments(
            pad_rows([flat.segments for flat in sources], 0),
            torch.stack([flat.stretched_segments(longest) for flat in targets]),
        ),
    )


class _Flat:
    """The tokens of a batch concatenated without padding, ``(tokens,)``, and the segment number of each."""

    def __init__(self, tokens: Tensor, lengths: Tensor):
        self.tokens = tokens[torch.arange(tokens.size(1)) < lengths.unsqueeze(1)]
        self.segments = torch.arange(1, len(tokens) + 1).repeat_interleave(lengths)

    def stretched_segments(self, length: int) -> Tensor:
        """``(length,)``: the last segment number is repeated."""
        return torch.cat([self.segments, self.segments[-1:].expand(length - len(self.segments))])


def _lengths(target: Tensor, pad: int) -> Tensor:
    """Tokens of each row up to the last one that is not padding, since padding may also occur within a text."""
    counts = torch.arange(1, target.size(1) + 1)
    return torch.where(target != pad, counts, 0).amax(1)
