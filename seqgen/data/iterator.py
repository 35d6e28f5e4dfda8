"""Iteration over a dataset epoch by epoch, whose position can be saved and restored."""

from __future__ import annotations

import itertools
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
    """Gives the batches of an epoch, then those of the next::

        while iterator.epoch <= max_epoch:
            for batch in iterator:      # what is left of the epoch
                ...

    Batches and their order are a function of (data, limits, seed, epoch). Threads prepare batches in advance. They do
    not change the order, and they end when the loop ends, also by an error. A batch counts as consumed when the
    iterator has returned it: after a state that was saved in the loop's body is loaded, the next batch comes first.

    Args:
        dataset: the examples.
        collate: puts examples into a batch.
        max_tokens: maximum tokens per batch, padding included; ``None`` for no limit.
        batch_size: maximum examples per batch; ``None`` for no limit.
        seed: of the order, and of what is random in the examples.
        shuffle: whether batches come in random order; if false, from short to long, the same in each epoch.
        rank: which of several processes this is.
        world_size: how many processes there are.
        even: whether each process gets the same number of batches (training) or each batch is given out exactly once
            (evaluation).
        num_workers: threads that prepare batches in advance; 0 prepares each batch when it is requested.

    Attributes:
        epoch: number of the current epoch, from 1.
        first: batches of the epoch that all processes together had returned before the state was loaded; the batches
            after them are distributed among the current processes.
        consumed: batches that this process has returned since then.
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
        self._made: tuple[int, Batches] | None = None

    def _all_batches(self) -> Batches:
        """The current epoch's batches, of all processes."""
        if self._made is None or self._made[0] != self.epoch:
            rng = generator(self.seed, self.epoch) if self.shuffle else None
            lengths = self.dataset.lengths(self.epoch, self.seed)
            batches = make_batches(lengths, max_tokens=self.max_tokens, batch_size=self.batch_size, rng=rng)
            self._made = self.epoch, batches
        return self._made[1]

    @property
    def batches(self) -> Batches:
        """This process's batches of positions in the dataset, from ``first`` to the end of the current epoch."""
        batches = self._all_batches()
        rest = batches.select(np.arange(self.first, len(batches)))
        return rest.shard(self.rank, self.world_size, even=self.even)

    @property
    def rounds(self) -> int:
        """How many batches the process with the most has, from ``first`` to the end of the current epoch."""
        return -(-(len(self._all_batches()) - self.first) // self.world_size)

    def __len__(self) -> int:
        """Batches of this process from ``first`` to the end of the current epoch, those consumed included."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the rest of the current epoch; at its end, ``epoch`` is increased."""
        epoch, batches = self.epoch, self.batches
        left = range(self.consumed, len(batches))
        for batch in self._in_line(batches, left) if self.num_workers < 1 else self._ahead(batches, left):
            self.consumed += 1
            yield batch
        if self.epoch == epoch:
            self.epoch, self.first, self.consumed = epoch + 1, 0, 0

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
        """The current position, which is the same in all processes; ``load_state_dict`` continues from it."""
        return {
            "epoch": self.epoch,
            "consumed": self.first + self.consumed * self.world_size,
            "batches": len(self._all_batches()),
            "examples": len(self.dataset),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position that ``state_dict`` returned.

        Args:
            state: the position. It may come from a run with another number of processes: the rest of the epoch is
                distributed among the current ones, and no batch is skipped or repeated.

        Raises:
            DataError: the data or the batch limits have changed, so the position is not valid.
        """
        self.epoch = int(state["epoch"])
        self.first, self.consumed = int(state["consumed"]), 0
        if self.first == 0:
            return  # at the beginning of an epoch, the position is valid for any data and limits
        found = {"batches": len(self._all_batches()), "examples": len(self.dataset)}
        if any(found[name] != state[name] for name in found):
            raise DataError(
                f"the checkpoint was saved in an epoch of {state['batches']} batches with {state['examples']} "
                f"examples, but now there are {found['batches']} with {found['examples']}; continue with the same data "
                "and batch limits, or start a new run with checkpoint.finetune_from"
            )
