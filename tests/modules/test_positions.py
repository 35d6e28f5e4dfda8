"""Positions and masks, with numbers worked out by hand."""

import pytest
import torch
from torch import Tensor

from seqgen.modules.masks import QueryPositions, step_mask
from seqgen.modules.positions import LearnedPositions, Positions

CPU = torch.device("cpu")


def of_source(positions: Positions, length: int, mask: Tensor | None) -> Tensor:
    """The embeddings of a source."""
    return positions(QueryPositions(0, length, CPU, causal=False, padding_mask=mask))


def of_target(positions: Positions, seen: int, new: int, start_offsets: Tensor | None = None) -> Tensor:
    """The embeddings of a target."""
    return positions(QueryPositions(seen, new, CPU, start_offsets=start_offsets))


def numbered(num_rows: int = 10, padding_idx: int = 1) -> Positions:
    """A table whose row ``n`` holds ``n``, so that looking up shows the number; the row of padding holds 0."""
    positions = LearnedPositions(num_rows, 1, padding_idx, std=1.0)
    with torch.no_grad():
        positions.weight.copy_(torch.arange(num_rows).unsqueeze(1))
        positions.weight[padding_idx] = 0
    return positions


def test_source_positions_count_tokens_on_either_side_of_the_padding() -> None:
    mask = torch.tensor([[False, False, False], [False, False, True], [True, True, False]])
    found = of_source(numbered(), 3, mask).squeeze(-1)
    assert found.masked_fill(mask, 0).tolist() == [[2, 3, 4], [2, 3, 0], [0, 0, 2]]
    assert of_source(numbered(), 3, None).squeeze(-1).tolist() == [[2, 3, 4]]
    assert of_source(numbered(padding_idx=0), 3, None).squeeze(-1).tolist() == [[1, 2, 3]]


def test_target_positions_go_on_from_what_was_seen() -> None:
    assert of_target(numbered(), 0, 3).squeeze(-1).tolist() == [[2, 3, 4]]
    assert of_target(numbered(), 4, 1).squeeze(-1).tolist() == [[6]]
    late = of_target(numbered(), 2, 2, torch.tensor([0, 2, 3]))
    assert late.squeeze(-1).tolist() == [[4, 5], [2, 3], [2, 2]]


def test_limits() -> None:
    positions = numbered(10)
    assert positions.max_positions == 8
    assert of_target(positions, 7, 1).item() == 9
    with pytest.raises(ValueError, match="a target of 9 tokens is longer than the 8 positions"):
        of_target(positions, 8, 1)
    with pytest.raises(ValueError, match="a source of 9 tokens is longer than the 8 positions"):
        of_source(positions, 9, None)
    long = torch.zeros(2, 9, dtype=torch.bool)
    with pytest.raises(ValueError, match="a source of 9 tokens is longer than the 8 positions"):
        of_source(positions, 9, long | torch.tensor([[False], [True]]))
    long[:, 0] = True
    assert of_source(positions, 9, long)[0, -1].item() == 9  # padding does not count
    late = of_target(positions, 8, 2, torch.tensor([2, 3]))
    assert late.squeeze(-1).tolist() == [[8, 9], [7, 8]]
    # a finished sentence may stay in the batch with one that has joined: its positions are not used
    assert of_target(positions, 8, 2, torch.tensor([1, 3])).squeeze(-1).tolist() == [[9, 9], [7, 8]]


def test_positions_of_queries() -> None:
    padded = torch.tensor([[True, True, False, False], [False, False, True, True]])
    assert QueryPositions(0, 4, CPU, False, padding_mask=padded).positions.tolist() == [[0, 0, 0, 1], [0, 1, 1, 1]]
    segments = torch.tensor([[1, 1, 2, 2]])
    assert QueryPositions(0, 4, CPU, segments=segments).positions.tolist() == [[0, 1, 0, 1]]
    offsets = torch.tensor([0, 3])
    assert QueryPositions(2, 2, CPU, start_offsets=offsets).positions.tolist() == [[2, 3], [0, 0]]


def test_masks_of_queries() -> None:
    queries = QueryPositions(2, 2, CPU)
    assert queries.distances.tolist() == [[2, 1, 0, -1], [3, 2, 1, 0]]
    assert queries.restrict(queries.distances < 2).int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    bias = queries.restrict(-queries.distances.float())
    assert (bias[0] > -10).tolist() == [True, True, True, False]
    assert bias.isfinite().all()
    made: list[int] = []
    for key in (bias, bias, CPU, bias):
        queries.once(key, lambda: made.append(1) or bias)
    assert len(made) == 3
    late = step_mask(2, 2, torch.tensor([0, 1]), CPU)
    assert late[:, 0].int().tolist() == [[[1, 1, 1, 0], [1, 1, 1, 1]], [[0, 1, 1, 0], [0, 1, 1, 1]]]
