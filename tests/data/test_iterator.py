"""Collation, and going through epochs: exact places, threads that change nothing and end."""

import contextlib
import copy
import itertools
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from seqgen.data.combined_datasets import PackedDataset
from seqgen.data.iterator import EpochIterator
from seqgen.extend import Batch, DataError, Dataset, Example, collate

PAD, EOS, START = 1, 2, 7


class Numbers(Dataset):
    """``n`` examples whose ids depend on position, epoch and seed, as with noise."""

    def __init__(self, n: int = 40):
        self.sizes = np.random.default_rng(0).integers(2, 9, (n, 2)).astype(np.int32)

    def __len__(self) -> int:
        return len(self.sizes)

    def lengths(self, epoch: int, seed: int) -> NDArray[np.int32]:
        return self.sizes

    def example(self, position: int, *, epoch: int, seed: int) -> Example:
        rng = np.random.default_rng([seed, epoch, position])
        source, target = (torch.from_numpy(np.append(rng.integers(4, 23, n - 1), EOS)) for n in self.sizes[position])
        return Example(position, source, target)


def put_together(examples: Sequence[Example]) -> Batch:
    return collate(examples, source_pad=PAD, target_pad=PAD, start_token=START)


def iterator(n: int = 40, **settings) -> EpochIterator:  # type: ignore[no-untyped-def]
    return EpochIterator(Numbers(n), put_together, **{"max_tokens": 30, **settings})


def content(batch: Batch) -> tuple[list[int], list[list[int]], list[list[int]]]:
    assert batch.target is not None
    return batch.ids.tolist(), batch.source.src_tokens.tolist(), batch.target.tolist()


def test_collate_worked_example() -> None:
    a, b = torch.tensor([4, 5, EOS]), torch.tensor([6, EOS])
    batch = collate([(0, b, a), (9, a, b)], source_pad=PAD, target_pad=0, start_token=START)
    assert content(batch) == ([0, 9], [[6, EOS, PAD], [4, 5, EOS]], [[4, 5, EOS], [6, EOS, 0]])
    assert batch.source.src_lengths.tolist() == [2, 3]
    assert batch.prev_output_tokens is not None
    assert batch.prev_output_tokens.tolist() == [[START, 4, 5], [START, 6, 0]]
    assert batch.ntokens == 5
    left = collate([(0, b, None), (9, a, None)], source_pad=PAD, target_pad=0, start_token=START, left_pad_source=True)
    assert left.source.src_tokens.tolist() == [[PAD, 6, EOS], [4, 5, EOS]]
    assert left.target is left.prev_output_tokens is None
    assert left.ntokens == 5
    assert left.source.src_tokens.dtype == torch.int64


def test_epochs() -> None:
    it = iterator()
    epochs = [[content(batch) for batch in it] for _ in range(2)]
    assert it.epoch == 3
    for epoch in epochs:
        assert sorted(i for batch in epoch for i in batch[0]) == list(range(40))
    assert epochs[0] != epochs[1]
    again = iterator(num_workers=0)
    assert [[content(batch) for batch in again] for _ in range(2)] == epochs, "threads do not change the order"
    other = [
        [batch.ids.tolist() for batch in iterator(seed=2)],
        *([example[0] for example in epoch] for epoch in epochs),
    ]
    assert all(one != two for one, two in itertools.combinations(other, 2)), "seed and epoch are not summed"


def test_an_interrupted_loop_continues() -> None:
    expected = [content(batch) for batch in iterator()]
    it = iterator()
    seen = [content(batch) for batch in itertools.islice(it, 3)] + [content(batch) for batch in it]
    assert seen == expected


@settings(max_examples=40, deadline=None)
@given(
    rounds=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 4)), max_size=4),
    last=st.integers(1, 7),
    size=st.one_of(st.just(40), st.integers(0, 8)),
)
def test_each_example_is_used_once_for_any_number_of_processes(
    rounds: list[tuple[int, int]], last: int, size: int
) -> None:
    """A run of some processes is interrupted after some rounds and resumed by others, several times in an epoch."""
    whole = [batch.ids.tolist() for batch in iterator(size, num_workers=0)]
    state, seen = iterator(size).state_dict(), []
    for world_size, count in [*rounds, (last, None)]:
        ranks = [iterator(size, rank=r, world_size=world_size, num_workers=0) for r in range(world_size)]
        for rank in ranks:
            rank.load_state_dict(state)
        assert ranks[0].rounds == len(ranks[0])
        stop = None if count is None else min(count, max(0, ranks[0].rounds - 1))
        handed = [itertools.islice(rank, stop) for rank in ranks]
        for together in itertools.zip_longest(*handed):
            seen += [batch.ids.tolist() for batch in together if batch is not None]
        state = ranks[0].state_dict()
    assert seen == whole, "also in the order of one process"


def test_other_data_or_limits_are_refused_within_an_epoch() -> None:
    """Also as many examples and batches, of other lengths; at the beginning of an epoch, other data is reported."""
    it, same, reordered = iterator(), iterator(), iterator()
    reordered.dataset.sizes = reordered.dataset.sizes[::-1]  # type: ignore[attr-defined]
    at_start = it.state_dict()
    next(iter(it))
    for other, said in ((iterator(41), "the training data has changed"), (iterator(max_tokens=50), "")):
        with pytest.raises(DataError, match=r"saved within an epoch of .* batches with 40 examples; now it has"):
            other.load_state_dict(it.state_dict())
        assert other.load_state_dict(at_start).startswith(said)
    with pytest.raises(DataError, match="or examples of other lengths"):
        reordered.load_state_dict(it.state_dict())
    assert same.load_state_dict(it.state_dict()) == same.load_state_dict(at_start) == ""
    assert reordered.load_state_dict(at_start) == "the training data has changed; the new data is used from epoch 1 on"


def worker_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("seqgen-batches")]


def test_threads_end_with_the_loop() -> None:
    for batch in iterator(num_workers=2):
        assert batch.num_sentences
        assert worker_threads()
        break
    assert not worker_threads()
    with contextlib.suppress(KeyError):
        for _ in iterator(num_workers=2):
            raise KeyError
    assert not worker_threads()
    assert list(iterator(num_workers=2))
    assert not worker_threads()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_error_in_an_example_is_raised_at_its_batch(workers: int) -> None:
    it, fifth = iterator(num_workers=workers), list(iterator())[4].ids.tolist()

    def failing(examples: Sequence[Example]) -> Batch:
        if [example.id for example in examples] == fifth:
            raise RuntimeError("the fifth")
        return put_together(examples)

    it.collate = failing
    with pytest.raises(RuntimeError, match="the fifth"):
        list(it)
    assert it.consumed == 4
    assert not worker_threads()


def test_batches_are_prepared_in_advance() -> None:
    it, made = iterator(), list[int]()

    def counted(examples: Sequence[Example]) -> Batch:
        made.append(len(examples))
        return put_together(examples)

    it.collate = counted
    batches = iter(it)
    next(batches)
    deadline = time.monotonic() + 10
    while len(made) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(made) >= 5, "the next batches were prepared in advance"
    assert it.consumed == 1
    del batches


class Steered(Numbers):
    """Numbers whose order follows a state that training changes in place."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = torch.tensor([shift])

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"shift": self.shift}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.shift = state["shift"]

    def example(self, position: int, *, epoch: int, seed: int) -> Example:
        return super().example((position - int(self.shift)) % len(self), epoch=epoch, seed=seed)


@pytest.mark.parametrize("pack", [False, True])
def test_a_state_counts_from_the_next_epoch_and_is_restored_within_one(pack: bool) -> None:
    """Every place to resume; the state changes before each epoch and after each batch."""

    def made(shift: int) -> tuple[Steered, EpochIterator]:
        data = Steered(shift)
        flat = lambda rows: put_together([one for row in rows for one in (row if pack else [row])])  # noqa: E731
        return data, EpochIterator(PackedDataset(data, 20) if pack else data, flat, max_tokens=40, num_workers=2)

    def train(data: Steered, it: EpochIterator) -> Iterator[tuple[object, ...]]:
        while it.epoch < 4:
            if not it.first + it.consumed:
                it.state_dict()  # a checkpoint between epochs does not fix the state
                data.shift += 1
            for batch in it:
                data.shift += int(batch.ids[0]) % 5
                yield content(batch)

    whole = list(train(*made(0)))
    assert list(map(content, made(1)[1])) == whole[: len(made(1)[1])], "the state before the first batch"
    for stop in range(1, len(whole)):
        data, it = made(0)
        before = list(itertools.islice(train(data, it), stop))
        data, again = made(17)  # what a new run does before it is restored
        again.load_state_dict(copy.deepcopy(it.state_dict()))
        assert before + list(train(data, again)) == whole, stop
