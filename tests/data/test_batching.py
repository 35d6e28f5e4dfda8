"""Batches: each example once, never too large, the same for the same seed, little padding."""

import itertools

import numpy as np
from hypothesis import given, strategies as st

from seqgen.data.iterator import Batches, make_batches, sort_by_length

lengths_lists = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)
limits = st.one_of(st.none(), st.integers(1, 100))


def array(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.int32).reshape(-1, 2)


def as_lists(batches: Batches) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@given(pairs=lengths_lists, max_tokens=limits, batch_size=limits, seed=st.one_of(st.none(), st.integers(0, 9)))
def test_every_example_once_within_the_limits(
    pairs: list[tuple[int, int]], max_tokens: int | None, batch_size: int | None, seed: int | None
) -> None:
    rng = None if seed is None else np.random.default_rng([seed, 1])
    batches = as_lists(make_batches(array(pairs), max_tokens=max_tokens, batch_size=batch_size, rng=rng))
    assert sorted(position for batch in batches for position in batch) == list(range(len(pairs)))
    for batch in batches:
        size = len(batch) * max(max(pairs[position]) for position in batch)
        assert len(batch) == 1 or max_tokens is None or size <= max_tokens
        assert batch_size is None or 1 <= len(batch) <= batch_size


@given(pairs=lengths_lists, max_tokens=limits)
def test_batches_are_as_large_as_they_may_be(pairs: list[tuple[int, int]], max_tokens: int | None) -> None:
    batches = as_lists(make_batches(array(pairs), max_tokens=max_tokens))
    for batch, following in itertools.pairwise(batches):
        assert max_tokens is not None
        longer = [*batch, following[0]]
        assert len(longer) * max(max(pairs[position]) for position in longer) > max_tokens


def test_worked_example() -> None:
    """Target length first; sources alternately from short to long and from long to short."""
    lengths = array([(7, 3), (5, 4), (2, 3), (3, 4), (4, 3), (6, 5), (8, 4), (4, 5), (3, 5)])
    order = sort_by_length(lengths)
    assert [tuple(row) for row in lengths[order].tolist()] in (
        [(2, 3), (4, 3), (7, 3), (8, 4), (5, 4), (3, 4), (3, 5), (4, 5), (6, 5)],
        [(7, 3), (4, 3), (2, 3), (3, 4), (5, 4), (8, 4), (6, 5), (4, 5), (3, 5)],
    )
    assert sort_by_length(array([(8, 5), (8, 4)])).tolist() == [1, 0], "the longest sources differ in their target"
    one_side = np.array([[5], [1], [5], [1]], np.int32)
    assert as_lists(make_batches(one_side, batch_size=2)) == [[1, 3], [0, 2]]
    sizes = array([(1, 2), (1, 2), (1, 2), (1, 9), (1, 3)])
    assert as_lists(make_batches(sizes, max_tokens=6)) == [[0, 1, 2], [4], [3]]


def test_little_padding() -> None:
    """Lengths as in real text: the target's padding, which costs most, is under one percent."""
    rng = np.random.default_rng(0)
    source = rng.gamma(6, 2.5, 30_000).clip(2, 80)
    lengths = np.stack([source, (source * rng.normal(1, 0.2, 30_000)).clip(2, 90)], 1).astype(np.int32)
    batches = make_batches(lengths, max_tokens=4096, rng=np.random.default_rng([1, 1]))
    padded = sum(len(rows) * rows.max(axis=0) for rows in (lengths[batch] for batch in batches))
    assert (1 - lengths.sum(axis=0) / padded < (0.14, 0.01)).all()
