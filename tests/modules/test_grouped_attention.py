"""Heads that share keys and values, soft-capped scores, rotary positions and zero-centered norms, by hand."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from seqgen.modules.attention import attend, soft_capped
from seqgen.modules.masks import QueryPositions
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.modules.positions import RotaryPositions
from seqgen.modules.rms_norm import RMSNorm


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("queries", [1, 5, 90], ids=["step", "plain", "fused"])
@pytest.mark.parametrize("masked", [False, True])
def test_groups_are_repeated_heads(queries: int, masked: bool) -> None:
    """Heads 0 and 1 read the first head of the keys, heads 2 and 3 the second."""
    q, k, v = random(2, 4, queries, 6), random(2, 2, 90, 6), random(2, 2, 90, 7)[..., :6]
    mask = random(2, 1, queries, 90) > 0 if masked else None
    wanted, _ = attend(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), mask)
    torch.testing.assert_close(attend(q, k, v, mask)[0], wanted, rtol=0, atol=1e-12)
    out, weights = attend(q, k, v, mask, need_weights=True)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    assert weights is not None
    assert weights.shape == (2, 4, queries, 90)


def test_soft_capped_scores() -> None:
    q, k = torch.tensor([[[[3.0]]]]), torch.tensor([[[[1.0], [-1.0]]]])
    _, weights = attend(q, k, k, scale=1.0, soft_cap=2.0, need_weights=True)
    score = 2 * math.tanh(1.5)
    assert weights is not None
    assert weights.flatten().tolist() == pytest.approx([1 / (1 + math.exp(-2 * score)), 1 / (1 + math.exp(2 * score))])
    assert soft_capped(torch.tensor([0.01, 100.0]), 5.0).tolist() == pytest.approx([0.01, 5.0], abs=1e-6)


def test_weights_of_projections_with_groups() -> None:
    attention = MultiheadAttention(8, 4, kv_heads=2, head_dim=3)
    assert attention.in_proj.weight.shape == (12 + 2 * 6, 8)
    assert MultiheadAttention(8, 4, kv_heads=1, head_dim=3, encoder_dim=5).kv_proj.weight.shape == (2 * 3, 5)
    with pytest.raises(ValueError, match="num_heads=4 is not a multiple of kv_heads=3"):
        MultiheadAttention(8, 4, kv_heads=3)


def test_rotation_by_hand() -> None:
    """One plane: a vector at position p is rotated by the angle p, and by p / 10 in a second plane."""
    rotary = RotaryPositions(4, base=100.0)
    queries = QueryPositions(seen=2, new=1, device=torch.device("cpu"))
    rotated = rotary(queries, torch.zeros(()))(torch.tensor([1.0, 0.0, 0.0, 1.0]).view(1, 1, 1, 4))
    wanted = [math.cos(2), -math.sin(0.2), math.sin(2), math.cos(0.2)]
    assert rotated.flatten().tolist() == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(ValueError, match="even head_dim, not 3"):
        RotaryPositions(3)


def test_divided_positions() -> None:
    """With a factor of 4, position 8 is rotated as position 2 is without one."""
    x, like = random(1, 1, 1, 4), torch.zeros((), dtype=torch.float64)
    far, near = (QueryPositions(seen=seen, new=1, device=torch.device("cpu")) for seen in (8, 2))
    divided, plain = RotaryPositions(4, factor=4.0)(far, like)(x), RotaryPositions(4)(near, like)(x)
    torch.testing.assert_close(divided, plain, rtol=0, atol=1e-6)


def test_normed_queries_and_keys() -> None:
    """Each head is normalized on its own, before it is rotated; values are not."""
    torch.manual_seed(0)
    norm = partial(RMSNorm, zero_centered=True)
    attention = MultiheadAttention(8, 4, kv_heads=2, head_dim=6, qk_norm=norm).double()
    attention.k_norm.weight.data.fill_(1)  # type: ignore[union-attr]
    x, positions = random(2, 3, 8), QueryPositions(0, 3, torch.device("cpu"))
    projected = attention.in_proj(x).view(2, 3, 8, 6)
    rotation = RotaryPositions(6)(positions, x)
    q, k, v = attention.own_heads(x, rotation)
    scaled = projected / (projected.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(q, rotation(scaled[:, :, :4]), rtol=0, atol=1e-12)
    torch.testing.assert_close(k, rotation(2 * scaled[:, :, 4:6]), rtol=0, atol=1e-12)
    torch.testing.assert_close(v, projected[:, :, 6:], rtol=0, atol=0)


def test_positions_of_queries() -> None:
    device = torch.device("cpu")
    padded = torch.tensor([[True, True, False, False], [False, False, True, True]])
    assert QueryPositions(0, 4, device, False, padding_mask=padded).positions.tolist() == [[0, 0, 0, 1], [0, 1, 1, 1]]
    segments = torch.tensor([[1, 1, 2, 2]])
    assert QueryPositions(0, 4, device, segments=segments).positions.tolist() == [[0, 1, 0, 1]]
    offsets = torch.tensor([0, 3])
    assert QueryPositions(2, 2, device, start_offsets=offsets).positions.tolist() == [[2, 3], [0, 0]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_zero_centered_norm(dtype: torch.dtype) -> None:
    norm, x = RMSNorm(6, zero_centered=True).to(dtype), random(3, 6).to(dtype)
    assert norm.weight.tolist() == [0] * 6
    norm.weight.data.copy_(random(6))
    factor = 1 + norm.weight.double()
    wanted = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * factor
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            torch.testing.assert_close(norm(x).double(), wanted, rtol=tolerance, atol=tolerance)
