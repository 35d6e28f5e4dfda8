"""Batches of a dataset, epoch by epoch: which examples form a batch, their order, and a position that can be saved."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqgen.core.errors import DataError
from seqgen.core.structures import Batch
from seqgen.data.pair_dataset import Dataset
from seqgen.system.processes import compute_ahead

PREFETCH = 8
"""Number of batches that each thread prepares in advance."""


Batches: TypeAlias = list[NDArray[np.int64]]
"""The positions of each batch's examples in a dataset."""


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


def split(sizes: NDArray[np.int32], max_tokens: int | None, batch_size: int | None) -> list[int]:
    """Split a sequence of examples into consecutive batches, each as large as the limits allow.

    The size of a batch is its number of rows times the length of its longest example: its tokens and its padding. An
    example that is longer than ``max_tokens`` gets a separate batch.

    Args:
        sizes: ``(n,)`` tokens of each example: the longer of its sides.
        max_tokens: maximum tokens per batch, padding included; ``None`` for no limit.
        batch_size: maximum examples per batch; ``None`` for no limit.

    Returns:
        The index of the first example of each batch.
    """
    starts: list[int] = []
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
    return starts


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
    """
    order = sort_by_length(lengths, rng)
    starts = split(lengths.max(axis=1)[order], max_tokens, batch_size)
    batches = [order[start:stop] for start, stop in pairwise([*starts, len(order)])]
    return batches if rng is None else [batches[i] for i in rng.permutation(len(batches))]


class Epoch(NamedTuple):
    """An epoch of a dataset.

    Attributes:
        number: its number, from 1.
        state: the state of the dataset for the epoch.
        dataset: the dataset with this state.
        batches: the batches of all ranks.
        lengths: a checksum of the lengths, which other data rarely has.
    """

    number: int
    state: dict[str, Any]
    dataset: Dataset
    batches: Batches
    lengths: int


@dataclass(eq=False)
class EpochIterator:
    """Iterates over the batches of one epoch after the other::

        while iterator.epoch <= max_epoch:
            for batch in iterator:      # the rest of the epoch
                ...

    Batches and their order depend only on the data, the limits, the seed, the epoch, and the state of the dataset when
    the epoch begins: later changes of the state count from the next epoch on. Threads prepare batches in
    advance, which does not change the order; they end when the loop ends, also by an exception. A batch counts as
    consumed when the iterator has returned it: a state saved in the loop's body continues with the next batch.

    Args:
        dataset: the examples.
        collate: combines examples into a batch.
        max_tokens: maximum tokens per batch, padding included; ``None`` for no limit.
        batch_size: maximum examples per batch; ``None`` for no limit.
        seed: seed of the order and of random examples, such as noise.
        shuffle: whether batches are in random order; if false, they are sorted from short to long in each epoch.
        rank: this process, from 0.
        world_size: number of processes.
        num_workers: threads that prepare batches in advance; 0 prepares each batch when it is requested.

    Attributes:
        epoch: number of the current epoch, from 1.
        first: number of batches of the epoch that all ranks together had consumed when the state was saved; the batches
            after them are distributed among the current ranks.
        consumed: number of batches that this rank has returned since then.
    """

    dataset: Dataset
    collate: Callable[[Sequence[Any]], Batch]
    _: KW_ONLY
    max_tokens: int | None = None
    batch_size: int | None = None
    seed: int = 1
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1
    num_workers: int = 1
    epoch: int = field(default=1, init=False)
    first: int = field(default=0, init=False)
    consumed: int = field(default=0, init=False)
    _made: Epoch | None = field(default=None, init=False)

    def _current(self) -> Epoch:
        """The current epoch, made anew for another state of the dataset as long as no batch is consumed."""
        if (made := self._made) is None or made.number != self.epoch or (made.state and not self.first + self.consumed):
            rng = np.random.default_rng([self.seed, self.epoch]) if self.shuffle else None
            state = copy.deepcopy(self.dataset.state_dict())
            dataset = self.dataset.with_state(state) if state else self.dataset
            lengths = dataset.lengths(self.epoch, self.seed)
            batches = make_batches(lengths, max_tokens=self.max_tokens, batch_size=self.batch_size, rng=rng)
            self._made = made = Epoch(self.epoch, state, dataset, batches, zlib.crc32(lengths.tobytes()))
        return made

    @property
    def batches(self) -> Batches:
        """This rank's batches from ``first`` to the end of the current epoch: every ``world_size``-th one."""
        return self._current().batches[self.first + self.rank :: self.world_size]

    @property
    def rounds(self) -> int:
        """The largest number of batches that a rank has from ``first`` to the end of the current epoch."""
        return -(-(len(self._current().batches) - self.first) // self.world_size)

    def __len__(self) -> int:
        """Number of this rank's batches from ``first`` to the end of the current epoch, consumed ones included."""
        return len(self.batches)

    def __iter__(self) -> Generator[Batch]:
        """Iterate over the rest of the current epoch, then increase ``epoch``."""
        left, epoch = self.batches[self.consumed :], self._current()
        prepare = partial(self._prepare, epoch)
        prepared: Iterable[Batch] = map(prepare, left)
        if self.num_workers > 0:
            pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="seqgen-batches")
            prepared = compute_ahead(pool, prepare, left, PREFETCH * self.num_workers)
        for batch in prepared:
            self.consumed += 1
            yield batch
        if self.epoch == epoch.number:
            self.epoch, self.first, self.consumed = epoch.number + 1, 0, 0

    def spare(self) -> Batch:
        """One example of the current epoch, for a rank that has no batch left but must still compute."""
        epoch = self._current()
        return self._prepare(epoch, epoch.batches[0][:1])

    def _prepare(self, epoch: Epoch, positions: NDArray[np.int64]) -> Batch:
        read = partial(epoch.dataset.example, epoch=epoch.number, seed=self.seed)
        return self.collate([read(position) for position in positions.tolist()])

    def state_dict(self) -> dict[str, Any]:
        """The current position, for ``load_state_dict``; it is the same on all ranks."""
        epoch = self._current()
        return {
            "epoch": self.epoch,
            "consumed": self.first + self.consumed * self.world_size,
            "batches": len(epoch.batches),
            "examples": len(self.dataset),
            "lengths": epoch.lengths,
            "dataset": {"epoch": epoch.state, "next": self.dataset.state_dict()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> str:
        """Continue from a position that ``state_dict`` returned.

        Args:
            state: the position. It may come from a run with another number of ranks: the rest of the epoch is
                distributed among the current ranks, and no batch is skipped or repeated.

        Raises:
            DataError: the data or the batch limits have changed, so the position is not valid.

        Returns:
            A message on data that has changed at the beginning of an epoch; empty if the lengths of all examples are
            the same.
        """
        self.epoch = int(state["epoch"])
        self.first, self.consumed, self._made = int(state["consumed"]), 0, None
        self.dataset.load_state_dict(state["dataset"]["epoch"])
        batches, lengths = self._current()[-2:]
        self.dataset.load_state_dict(copy.deepcopy(state["dataset"]["next"]))
        same_lengths = state.get("lengths") == lengths
        if self.first == 0:  # the position is valid for any data and limits
            changed = f"the training data has changed; the new data is used from epoch {self.epoch} on"
            return "" if same_lengths else changed
        if not same_lengths or (state["batches"], state["examples"]) != (len(batches), len(self.dataset)):
            raise DataError(
                f"the checkpoint was saved within an epoch of {state['batches']} batches with {state['examples']} "
                f"examples; now it has {len(batches)} with {len(self.dataset)}, or examples of other lengths; continue "
                "with the same data and batch limits, or start a new run with checkpoint.finetune_from"
            )
        return ""
