"""Iteration over a dataset epoch by epoch, whose position can be saved and restored."""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from seqgen.data.batching import Batches, generator, make_batches
from seqgen.data.pair_dataset import Dataset
from seqgen.errors import DataError
from seqgen.structures import Batch

PREFETCH = 8
"""Number of batches that each thread prepares in advance."""


class EpochIterator:
    """Iterates over the batches of one epoch after the other::

        while iterator.epoch <= max_epoch:
            for batch in iterator:      # the rest of the epoch
                ...

    Batches and their order depend only on the data, the limits, the seed and the epoch. Threads prepare batches in
    advance, which does not change the order; they end when the loop ends, also by an exception. A batch counts as
    consumed when the iterator has returned it: a state saved in the loop's body continues with the next batch.

    Args:
        dataset: the examples.
        collate: combines examples into a batch.
        max_tokens: maximum tokens per batch, padding included; ``None`` for no limit.
        batch_size: maximum examples per batch; ``None`` for no limit.
        seed: seed of the order and of random examples (noise, subword sampling).
        shuffle: whether batches are in random order; if false, they are sorted from short to long in each epoch.
        rank: this process, from 0.
        world_size: number of processes.
        even: whether each rank gets the same number of batches (training) or each batch is used exactly once
            (evaluation); see ``Batches.shard``.
        num_workers: threads that prepare batches in advance; 0 prepares each batch when it is requested.

    Attributes:
        epoch: number of the current epoch, from 1.
        first: number of batches of the epoch that all ranks together had consumed when the state was saved; the batches
            after them are distributed among the current ranks.
        consumed: number of batches that this rank has returned since then.
    """

    def __init__(
        self,
        dataset: Dataset,
        collate: Callable[[Sequence[Any]], Batch],
        *,
        max_tokens: int | None = None,
        batch_size: int | None = None,
        seed: int = 1,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        even: bool = True,
        num_workers: int = 1,
    ):
        self.dataset = dataset
        self.collate = collate
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.even = even
        self.num_workers = num_workers
        self.epoch = 1
        self.first = 0
        self.consumed = 0
        self._made: tuple[int, Batches, int] | None = None

    def _all_batches(self) -> Batches:
        """The current epoch's batches, of all ranks."""
        if self._made is None or self._made[0] != self.epoch:
            rng = generator(self.seed, self.epoch) if self.shuffle else None
            lengths = self.dataset.lengths(self.epoch, self.seed)
            batches = make_batches(lengths, max_tokens=self.max_tokens, batch_size=self.batch_size, rng=rng)
            self._made = self.epoch, batches, zlib.crc32(lengths.tobytes())
        return self._made[1]

    def _lengths_checksum(self) -> int:
        """A checksum of the lengths of all examples in the current epoch, which differs for most other data."""
        self._all_batches()
        return self._made[2] if self._made is not None else 0

    @property
    def batches(self) -> Batches:
        """This rank's batches of positions in the dataset, from ``first`` to the end of the current epoch."""
        batches = self._all_batches()
        rest = batches.select(np.arange(self.first, len(batches)))
        return rest.shard(self.rank, self.world_size, even=self.even)

    @property
    def rounds(self) -> int:
        """The largest number of batches that a rank has from ``first`` to the end of the current epoch."""
        return -(-(len(self._all_batches()) - self.first) // self.world_size)

    def __len__(self) -> int:
        """Number of this rank's batches from ``first`` to the end of the current epoch, consumed ones included."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the rest of the current epoch, then increase ``epoch``."""
        epoch, batches = self.epoch, self.batches
        left = range(self.consumed, len(batches))
        for batch in self._in_line(batches, left) if self.num_workers < 1 else self._ahead(batches, left):
            self.consumed += 1
            yield batch
        if self.epoch == epoch:
            self.epoch, self.first, self.consumed = epoch + 1, 0, 0

    def spare(self) -> Batch:
        """One example of the current epoch, for a rank that has no batch left but computes along with the others."""
        position = int(self._all_batches()[0][0])
        return self.collate([self.dataset.example(position, epoch=self.epoch, seed=self.seed)])

    def _prepare(self, batches: Batches, index: int, epoch: int) -> Batch:
        positions = batches[index].tolist()
        return self.collate([self.dataset.example(position, epoch=epoch, seed=self.seed) for position in positions])

    def _in_line(self, batches: Batches, indices: range) -> Iterator[Batch]:
        return (self._prepare(batches, index, self.epoch) for index in indices)

    def _ahead(self, batches: Batches, indices: range) -> Iterator[Batch]:
        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="seqgen-batches")
        epoch, todo = self.epoch, iter(indices)
        waiting: deque[Future[Batch]] = deque()

        def submit(count: int) -> None:
            waiting.extend(pool.submit(self._prepare, batches, i, epoch) for i in itertools.islice(todo, count))

        try:
            submit(PREFETCH * self.num_workers)
            while waiting:
                batch = waiting.popleft().result()
                submit(1)
                yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def state_dict(self) -> dict[str, Any]:
        """The current position, for ``load_state_dict``; it is the same on all ranks."""
        return {
            "epoch": self.epoch,
            "consumed": self.first + self.consumed * self.world_size,
            "batches": len(self._all_batches()),
            "examples": len(self.dataset),
            "lengths": self._lengths_checksum(),
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
        self.first, self.consumed = int(state["consumed"]), 0
        same_lengths = state.get("lengths") in (None, self._lengths_checksum())  # older checkpoints have no checksum
        if self.first == 0:  # the position is valid for any data and limits
            return (
                ""
                if same_lengths
                else f"the training data has changed; the new data is used from epoch {self.epoch} on"
            )
        found = {"batches": len(self._all_batches()), "examples": len(self.dataset)}
        if any(found[name] != state[name] for name in found):
            raise DataError(
                f"the checkpoint was saved in an epoch of {state['batches']} batches with {state['examples']} "
                f"examples, but now there are {found['batches']} with {found['examples']}; continue with the same data "
                "and batch limits, or start a new run with checkpoint.finetune_from"
            )
        if not same_lengths:
            raise DataError(
                "the checkpoint was saved within an epoch, and since then the examples of the training data have other "
                "lengths; continue with the same data, or start a new run with checkpoint.finetune_from"
            )
        return ""
