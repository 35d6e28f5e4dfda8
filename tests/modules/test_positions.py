"""Positions, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from seqgen.modules.masks import QueryPositions
from seqgen.modules.positions import LearnedPositions, Positions, SinusoidalPositions


def of_source(positions: Positions, length: int, mask: Tensor | None) -> Tensor:
    """The embeddings of a source."""
    return positions(QueryPositions(0, length, torch.device("cpu"), causal=False, padding_mask=mask))


def of_target(positions: Positions, seen: int, new: int, start_offsets: Tensor | None = None) -> Tensor:
    """The embeddings of a target."""
    return positions(QueryPositions(seen, new, torch.device("cpu"), start_offsets=start_offsets))


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


def test_sinusoids() -> None:
    """Four channels: frequencies 1 and 1/10000, sines first."""
    positions = SinusoidalPositions(10, 4, padding_idx=1)
    (first, second) = of_target(positions, 0, 2)[0].tolist()
    assert first == pytest.approx([math.sin(2), math.sin(2e-4), math.cos(2), math.cos(2e-4)])
    assert second == pytest.approx([math.sin(3), math.sin(3e-4), math.cos(3), math.cos(3e-4)])
    assert positions.state_dict() == {}
    frequencies = SinusoidalPositions(4, 8, padding_idx=0).weight[1, :4].arcsin()
    torch.testing.assert_close(frequencies[1:3], torch.tensor([10000 ** (-1 / 3), 10000 ** (-2 / 3)]))
    assert SinusoidalPositions(5, 7, padding_idx=0).weight[:, -1].tolist() == [0] * 5


def test_learned_positions_are_trained() -> None:
    positions = LearnedPositions(6, 3, padding_idx=1, std=0.1)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    (of_source(positions, 3, mask)[~mask].sum() + of_target(positions, 1, 1).sum()).backward()
    assert positions.weight.grad[:, 0].tolist() == [0, 0, 2, 3, 1, 0]


def test_sinusoids_of_the_paper() -> None:
    """Five channels: frequencies 1, 10000 ** -0.4 and 10000 ** -0.8, of which the last has no cosine; from number 0."""
    positions = SinusoidalPositions(9, 5, padding_idx=-1, sinusoids="paper")
    assert positions.max_positions == 9
    rates = (1.0, 10000**-0.4, 10000**-0.8)
    for number, row in enumerate(of_target(positions, 0, 9)[0].tolist()):
        wanted = [math.sin(number * rate) for rate in rates] + [math.cos(number * rate) for rate in rates[:2]]
        assert row == pytest.approx(wanted, abs=1e-6)


def test_source_positions_from_zero() -> None:
    """Padding has no number of its own then; its positions are masked."""
    positions = LearnedPositions(6, 1, -1, std=1.0)
    with torch.no_grad():
        positions.weight.copy_(torch.arange(6).unsqueeze(1))
    mask = torch.tensor([[False, False, False], [False, False, True], [True, True, False]])
    found = of_source(positions, 3, mask)
    assert found.squeeze(-1).masked_fill(mask, -1).tolist() == [[0, 1, 2], [0, 1, -1], [-1, -1, 0]]
    found[~mask].sum().backward()
    assert positions.weight.grad is not None
    of_source(positions, 6, torch.tensor([[False] * 6, [True] * 6]))[0].sum().backward()
    assert positions.weight.grad[5].item() == 1, "the last row is trained, too"
