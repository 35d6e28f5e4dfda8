"""Batching: which examples form a batch, and the order of the batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Batches:
    """Batches of positions in a dataset, stored in flat arrays because there may be hundreds of thousands of batches.

    Attributes:
        order: ``(n,)`` int64 positions, batch after batch.
        starts: ``(batches,)`` int64 index into ``order`` of each batch's first position.
        stops: ``(batches,)`` int64 index after its last one.
    """

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """The positions of a batch, ``(examples,)`` int64."""
        return self.order[self.starts[index] : self.stops[index]]

    def select(self, which: NDArray[np.int64]) -> Batches:
        """A selection of the batches.

        Args:
            which: ``(n,)`` int64 indices of batches, in the order of the result.
        """
        return Batches(self.order, self.starts[which], self.stops[which])

    def shard(self, rank: int, world_size: int, *, even: bool = True) -> Batches:
        """The batches of one rank: every ``world_size``-th batch, beginning with number ``rank``.

        Args:
            rank: the process, from 0.
            world_size: number of processes.
            even: if true, every rank gets the same number of batches, which synchronous training needs; to this end the
                first batches of the epoch are repeated. If false, every batch is used exactly once, which evaluation
                needs, and the last ranks may get one batch less.
        """
        count = len(self)
        if even:
            count += -count % world_size
        return self.select(np.arange(rank, count, world_size) % max(1, len(self)))


def generator(seed: int, epoch: int) -> np.random.Generator:
    """The random generator of an epoch.

    Args:
        seed: the run's seed.
        epoch: number of the epoch.
    """
    return np.random.default_rng([seed, epoch])


def sort_by_length(lengths: NDArray[np.int32], ties: np.random.Generator | None = None) -> NDArray[np.int64]:
    """Sort examples by length.

    Examples are sorted by target length first, because a target token costs the most (its logits are as wide as the
    vocabulary). Within one target length they are sorted by source length, alternately ascending and descending, so
    that source lengths also stay similar where the target length changes::

        target  3 3 3 4 4 4 5 5 5
        source  2 4 7 8 5 3 3 4 6

    Args:
        lengths: ``(n, sides)`` tokens of each example: source, and target if there is one.
        ties: shuffles examples of equal lengths; ``None`` leaves them in their order.

    Returns:
        ``(n,)`` int64 the examples in the new order.
    """
    source, target = lengths[:, 0].astype(np.int64), lengths[:, -1].astype(np.int64)
    rank = np.arange(len(lengths)) if ties is None else ties.permutation(len(lengths))
    snake = np.where(target % 2 == 0, source, source.max(initial=0) - source)
    key = target * (snake.max(initial=0) + 1) + snake
    order: NDArray[np.int64] = rank[np.argsort(key[rank], kind="stable")]
    return order


def split(sizes: NDArray[np.int32], max_tokens: int | None, batch_size: int | None) -> NDArray[np.int64]:
    """Split a sequence of examples into consecutive batches, each as large as the limits allow.

    The size of a batch is its number of rows times the length of its longest example: its tokens and its padding. An
    example that is longer than ``max_tokens`` gets a batch of its own.

    Args:
        sizes: ``(n,)`` tokens of each example: the longer of its sides.
        max_tokens: maximum tokens per batch, padding included; ``None`` for no limit.
        batch_size: maximum examples per batch; ``None`` for no limit.

    Returns:
        ``(batches,)`` int64 index of the first example of each batch.
    """
    starts = []
    start, n = 0, len(sizes)
    while start < n:
        starts.append(start)
        rows = n - start if batch_size is None else batch_size
        if max_tokens is not None:
            rows = min(rows, max_tokens // max(1, int(sizes[start])))
            # the size of the first n rows never decreases with n, so a binary search finds the last row that fits
            longest = np.maximum.accumulate(sizes[start : start + rows], dtype=np.int64)
            tokens = longest * np.arange(1, len(longest) + 1)
            rows = int(np.searchsorted(tokens, max_tokens, side="right"))
        start += max(1, rows)
    return np.array(starts, np.int64)


def make_batches(
    lengths: NDArray[np.int32],
    *,
    max_tokens: int | None = None,
    batch_size: int | None = None,
    rng: np.random.Generator | None = None,
) -> Batches:
    """Put every example into exactly one batch, with examples of similar length.

    Args:
        lengths: ``(n, sides)`` tokens of each example.
        max_tokens: maximum tokens per batch: rows times the longest source or target; ``None`` for no limit.
        batch_size: maximum examples per batch; ``None`` for no limit.
        rng: shuffles the batches and the examples of equal length; ``None`` for a fixed order.

    Returns:
        The batches.

    Raises:
        ValueError: a limit is below 1.
    """
    for name, limit in (("max_tokens", max_tokens), ("batch_size", batch_size)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name} is {limit} but must be at least 1; None stands for no limit")
    order = sort_by_length(lengths, rng)
    starts = split(lengths.max(axis=1)[order], max_tokens, batch_size)
    batches = Batches(order, starts, np.append(starts[1:], len(order)))
    return batches if rng is None else batches.select(rng.permutation(len(batches)))
