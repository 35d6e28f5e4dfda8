"""Merged attention: one softmax over target and source, in one pass and in steps."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from seqgen.core.incremental_state import IncrementalState
from seqgen.modules.attention import attend
from seqgen.modules.kv_cache.growing import GrowingCache
from seqgen.modules.kv_cache.indirection import IndirectionCache
from seqgen.modules.masks import QueryPositions, segment_mask
from seqgen.modules.multihead_attention import MergedAttention
from seqgen.modules.positions import RotaryPositions, Rotation
from seqgen.modules.rms_norm import RMSNorm

PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


def attention() -> MergedAttention:
    torch.manual_seed(0)
    norm = partial(RMSNorm, zero_centered=True)
    module = MergedAttention(8, 4, kv_heads=2, head_dim=6, bias=True, qk_norm=norm).double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def rotation(seen: int, new: int) -> Rotation:
    return RotaryPositions(6)(QueryPositions(seen, new, torch.device("cpu")), torch.zeros((), dtype=torch.float64))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@torch.no_grad()
def test_one_softmax_over_target_and_source() -> None:
    """Keys of the target are rotated, those of the source are not; both have one projection and one norm."""
    module, x, source = attention(), random(2, 4, 8), random(2, 5, 8)
    out, weights = module(x, source, PADDING, is_causal=True, rotation=rotation(0, 4), need_weights=True)
    q = rotation(0, 4)(module.q_norm(module.q_proj(x).view(2, 4, 4, 6))).transpose(1, 2)
    kv = module.kv_proj(torch.cat([x, source], dim=1)).view(2, 9, 2, 2, 6)
    keys, values = module.k_norm(kv[:, :, 0]), kv[:, :, 1].transpose(1, 2)
    keys = torch.cat([rotation(0, 4)(keys[:, :4]), keys[:, 4:]], dim=1).transpose(1, 2)
    causal = torch.ones(4, 4, dtype=torch.bool).tril().expand(2, 4, 4)
    mask = torch.cat([causal, ~PADDING.unsqueeze(1).expand(2, 4, 5)], dim=2).unsqueeze(1)
    wanted, heads = attend(q, keys, values, mask, need_weights=True)
    torch.testing.assert_close(out, module.out_proj(wanted.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)
    assert heads is not None
    over_source = heads[..., 4:]
    torch.testing.assert_close(weights, (over_source / over_source.sum(-1, keepdim=True)).mean(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("table", [True, False], ids=["in place", "moved"])
@pytest.mark.parametrize("share", [True, False], ids=["one source", "a source for each row"])
@torch.no_grad()
def test_steps_are_the_parallel_pass(table: bool, share: bool) -> None:
    """Three beams of two sentences, reordered before each step; the source has one row for each sentence, or more."""
    module, x, source = attention(), random(6, 4, 8), random(2, 5, 8)
    each_row = source.repeat_interleave(3, 0), PADDING.repeat_interleave(3, 0)
    given = (source, PADDING) if share else each_row
    state = IncrementalState(2, 3)
    state.beam_indirection = table
    parents = torch.tensor([[1, 0, 1], [2, 2, 0]])
    for step in range(4):
        if step:
            state[module.state_key] = module.reorder_state_beams(state[module.state_key], parents)
            x = x.view(2, 3, 4, 8).gather(1, parents[:, :, None, None].expand(2, 3, 4, 8)).flatten(0, 1)
        arguments = {"rotation": rotation(step, 1), "incremental_state": state, "need_weights": step == 3}
        out, weights = module(x[:, step : step + 1], *given, **arguments)
        wanted, over_source = module(x, *each_row, is_causal=True, rotation=rotation(0, 4), need_weights=True)
        torch.testing.assert_close(out, wanted[:, step : step + 1], rtol=0, atol=1e-12)
    torch.testing.assert_close(weights, over_source[:, 3:], rtol=0, atol=1e-12)
    kind = IndirectionCache if table else GrowingCache
    assert isinstance(state[module.state_key]["cache"], kind)
    assert state[module.state_key]["source"].view().keys.size(0) == (2 if share else 6)


@torch.no_grad()
def test_examples_in_one_row_do_not_see_each_other() -> None:
    module, x, source = attention(), random(1, 5, 8), random(1, 4, 8)
    of_target, of_source = torch.tensor([[1, 1, 2, 2, 2]]), torch.tensor([[1, 1, 1, 2]])
    rotations = RotaryPositions(6)(QueryPositions(0, 5, torch.device("cpu"), segments=of_target), x)
    out, _ = module(
        x,
        source,
        attn_mask=segment_mask(of_target, of_target, causal=True),
        encoder_attn_mask=segment_mask(of_target, of_source),
        rotation=rotations,
    )
    first, _ = module(x[:, :2], source[:, :3], is_causal=True, rotation=rotation(0, 2))
    second, _ = module(x[:, 2:], source[:, 3:], is_causal=True, rotation=rotation(0, 3))
    torch.testing.assert_close(out, torch.cat([first, second], dim=1), rtol=0, atol=1e-12)


def test_the_source_is_needed_first() -> None:
    with pytest.raises(ValueError, match="needs the encoder's output at its first step"):
        attention()(random(1, 1, 8), incremental_state={})
