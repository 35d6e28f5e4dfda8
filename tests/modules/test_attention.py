"""Attention of each kind against arithmetic done by hand, and steps against one pass."""

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqgen.extend import Dropout, IncrementalState, Linear, RMSNorm, RotaryPositions, Rotation, rows_of_parents
from seqgen.modules import attention as arithmetic
from seqgen.modules.attention import attend
from seqgen.modules.masks import QueryPositions, segment_mask, step_mask
from seqgen.modules.multihead_attention import MergedAttention, MultiheadAttention
from seqgen.modules.step_plan import StepPlan
from tests.covering import covering
from tests.modules.conftest import MEMORIES

CPU = torch.device("cpu")
DIM, BEAM = 8, 3
NORMED: dict[str, Any] = {"kv_heads": 2, "head_dim": 6, "qk_norm": partial(RMSNorm, zero_centered=True)}
KINDS: dict[str, Callable[[], MultiheadAttention]] = {
    "self": partial(MultiheadAttention, DIM, 2),
    "wide heads": partial(MultiheadAttention, DIM, 2, head_dim=6, bias=False, scale=1.0),
    "rotated": partial(MultiheadAttention, DIM, 2, head_dim=6),
    "capped": partial(MultiheadAttention, DIM, 2, soft_cap=2.0),
    "grouped": partial(MultiheadAttention, DIM, 4, **NORMED),
    "source": partial(MultiheadAttention, DIM, 2, encoder_dim=5),
    "merged": partial(MergedAttention, DIM, 4, **NORMED),
}
ROTATED = ("rotated", "grouped", "merged")

PADDING = torch.tensor([[False] * 4, [False, False, True, True]])
"""Of the sources of two sentences."""


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def module_of(kind: str) -> MultiheadAttention:
    torch.manual_seed(0)
    module = KINDS[kind]().double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def source_of(module: MultiheadAttention) -> Tensor | None:
    """The encoder's output, a row for each of two sentences."""
    return random(2, 4, module.kv_proj.in_features) if module.encoder_decoder else None


def rotation_of(kind: str, seen: int, new: int) -> Rotation | None:
    return RotaryPositions(6)(QueryPositions(seen, new, CPU), random(1)) if kind in ROTATED else None


# --- by hand


def softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def rotated(x: Tensor) -> Tensor:
    """Plane ``i`` of the vector at position ``p`` of ``(T, D)``, rotated by the angle ``p * 10000 ** (-2i / D)``."""
    first, second = x.chunk(2, dim=-1)
    speeds = 10000 ** (-2 * torch.arange(first.size(1), dtype=torch.float64) / x.size(1))
    turned = torch.complex(first, second) * torch.exp(1j * torch.arange(len(x)).unsqueeze(1) * speeds)
    return torch.cat([turned.real, turned.imag], dim=-1)


def by_hand(
    module: MultiheadAttention, x: Tensor, source: Tensor | None, allowed: Tensor, bias: Tensor, turns: Any
) -> tuple[Tensor, Tensor]:
    """Attention of one row, head by head: the output, and the weights of each head over keys that are ``allowed``."""
    heads, groups, dim = module.num_heads, module.kv_heads, module.head_dim
    merged = isinstance(module, MergedAttention)
    if source is None:
        q, k, v = module.in_proj(x).split([heads * dim, groups * dim, groups * dim], dim=-1)
    else:
        q = module.q_proj(x)
        k, v = module.kv_proj(torch.cat([x, source]) if merged else source).chunk(2, dim=-1)
    outs, maps = [], []
    for head in range(heads):
        mine, shared = (slice(number * dim, (number + 1) * dim) for number in (head, head * groups // heads))
        keys = module.k_norm(k[:, shared])
        keys = torch.cat([turns(keys[: len(x)]), keys[len(x) :]]) if source is None or merged else keys
        scores = turns(module.q_norm(q[:, mine])) @ keys.t() * (module.scale or 1 / math.sqrt(dim))
        if module.soft_cap is not None:
            scores = module.soft_cap * torch.tanh(scores / module.soft_cap)
        maps.append(softmax((scores + bias[head]).masked_fill(~allowed, -math.inf)))
        outs.append(maps[-1] @ v[:, shared])
    return module.out_proj(torch.cat(outs, dim=-1)), torch.stack(maps)


@torch.no_grad()
@pytest.mark.parametrize("mask", ["none", "causal", "bias"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_by_hand(kind: str, mask: str) -> None:
    """With padding among the keys, and three rows that share a source; that may have no mask besides its padding."""
    module, x = module_of(kind), random(2 * BEAM, 5, DIM)
    source, over_target, turns = source_of(module), kind != "source", rotated if kind in ROTATED else nn.Identity()
    padding = torch.tensor([[False] * 5, [False, False, True, True, False], *[[False, True] + [False] * 3] * 4])
    padding = PADDING if module.encoder_decoder else padding
    masks: dict[str, Any] = {"key_padding_mask": padding, "is_causal": over_target and mask == "causal"}
    target, bias = torch.ones(5, 5, dtype=torch.bool), torch.zeros(module.num_heads, 5, 1)
    if mask == "causal":
        target = target.tril()
    if mask == "bias" and over_target:
        bias = random(module.num_heads, 5, 5)
        masks["attn_mask"] = bias.unsqueeze(0)
        bias = nn.functional.pad(bias, (0, 4 if kind == "merged" else 0))
    arguments = {**masks, "rotation": rotation_of(kind, 0, 5)}
    out, weights = module(x, source, **arguments, need_weights=True)
    unasked, none = module(x, source, **arguments)
    torch.testing.assert_close(unasked, out, rtol=0, atol=1e-12)
    assert none is None
    for row, hidden in enumerate(padding.repeat_interleave(2 * BEAM // len(padding), 0)):
        seen = (~hidden).expand(5, -1)
        allowed = seen if kind == "source" else torch.cat([target, seen], 1) if kind == "merged" else target & seen
        wanted, heads = by_hand(module, x[row], None if source is None else source[row // BEAM], allowed, bias, turns)
        heads = heads[..., 5:] / heads[..., 5:].sum(-1, keepdim=True) if kind == "merged" else heads
        torch.testing.assert_close(out[row], wanted, rtol=0, atol=1e-6)
        torch.testing.assert_close(weights[row], heads.mean(0), rtol=0, atol=1e-6)


@torch.no_grad()
def test_scores_have_their_bound_at_every_length() -> None:
    """Fused kernels, which have none, are chosen for long sources."""
    module, x = module_of("capped"), 4 * random(2, 90, DIM)
    free = torch.ones(90, 90, dtype=torch.bool)
    wanted = torch.stack([by_hand(module, row, None, free, torch.zeros(2, 1, 1), nn.Identity())[0] for row in x])
    torch.testing.assert_close(module(x)[0], wanted, rtol=0, atol=1e-10)


MASKS = {
    "none": None,
    "bool": (random(2, 1, 5, 7) < 0.5) | (torch.arange(7) == 0),
    "keys": torch.tensor([[True] * 7, [True] * 4 + [False] * 3])[:, None, None, :],
    "float": random(4, 5, 7),
    "causal": torch.ones(5, 7, dtype=torch.bool).tril(),
    "nothing allowed": torch.zeros(2, 1, 5, 7, dtype=torch.bool),
}


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("mask", MASKS)
def test_all_kernels_agree(mask: str, scale: float, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that may see nothing gives numbers; two successive heads may read the same keys."""
    monkeypatch.setattr(arithmetic, "_FEW", 0)
    shapes = ((4, 5, 6), (groups, 7, 6), (groups, 7, 6))
    tensors = [random(2, *shape, seed=shape[1]).requires_grad_() for shape in shapes]
    q, k, v = tensors
    scores = q @ k.repeat_interleave(4 // groups, 1).transpose(2, 3) * scale
    given = MASKS[mask]
    if given is not None:
        scores = scores + given if mask == "float" else scores.masked_fill(~given, -math.inf)
    wanted = softmax(scores) @ v.repeat_interleave(4 // groups, 1)
    wanted = [wanted, *torch.autograd.grad(wanted.square().sum(), tensors)]
    causal: dict[str, Any] = {"is_causal": True} if mask == "causal" else {"mask": given}
    for small, asked in ((10**9, False), (0, False), (0, True)):
        monkeypatch.setattr(arithmetic, "_SMALL", small)
        out, _ = attend(*tensors, **causal, scale=scale, need_weights=asked)
        found = [out, *torch.autograd.grad(out.square().sum(), tensors)]
        assert all(one.isfinite().all() for one in found)
        if mask != "nothing allowed":
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_query_that_may_see_nothing_gives_no_nan(dtype: torch.dtype) -> None:
    x = torch.randn(1, 2, 3, 4).to(dtype)
    nothing = torch.zeros(1, 1, 3, 3, dtype=torch.bool)
    for need_weights in (True, False):
        assert attend(x, x, x, nothing, need_weights=need_weights)[0].isfinite().all()


def test_dropout_of_weights() -> None:
    """The weights that are returned are those before dropout."""
    torch.manual_seed(0)
    x = torch.randn(1, 1, 4, 4)
    out, weights = attend(x, x, x, dropout=Dropout(0.5), need_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 4))
    assert not torch.allclose(out, weights @ x)


@torch.no_grad()
def test_examples_in_one_row_do_not_see_each_other() -> None:
    module, x, source = module_of("merged"), random(1, 5, DIM), random(1, 4, DIM)
    of_target, of_source = torch.tensor([[1, 1, 2, 2, 2]]), torch.tensor([[1, 1, 1, 2]])
    masks = segment_mask(of_target, of_target, causal=True), segment_mask(of_target, of_source)
    rotation = RotaryPositions(6)(QueryPositions(0, 5, CPU, segments=of_target), x)
    out, _ = module(x, source, attn_mask=masks[0], encoder_attn_mask=masks[1], rotation=rotation)
    first, _ = module(x[:, :2], source[:, :3], is_causal=True, rotation=rotation_of("merged", 0, 2))
    second, _ = module(x[:, 2:], source[:, 3:], is_causal=True, rotation=rotation_of("merged", 0, 3))
    torch.testing.assert_close(out, torch.cat([first, second], dim=1), rtol=0, atol=1e-12)


def test_initial_projections_are_independent_glorot_matrices() -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(64, 4)
    bound = math.sqrt(6 / 128) * math.sqrt(0.5)
    for block in module.in_proj.weight.split(64):
        assert block.abs().max() <= bound
        assert block.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


# --- in steps


CHUNKS = [1, 1, 1, 1, 1, 3, 1, 1, 2, 1, 1]
"""New positions of each step."""


def masks_of(kind: str, bias: Tensor | None, seen: int, new: int) -> dict[str, Any]:
    """The masks of new positions: over the positions of the target, or over the source."""
    if bias is None:
        return {} if kind == "source" else {"is_causal": True}
    rows = bias[:, :, seen : seen + new]
    if kind == "source":
        return {"attn_mask": rows}
    allowed = step_mask(seen, new, None, CPU)
    rows = rows[..., : seen + new]
    return {"attn_mask": rows if allowed is None else rows.masked_fill(~allowed, -1e30)}


def add_hook(layer: nn.Module, before: bool) -> None:
    if before:
        layer.register_forward_pre_hook(lambda _, given: (given[0] + 0.5,))
    else:
        layer.register_forward_hook(lambda _, given, out: out + given[0].mean(-1, keepdim=True))


CASES = itertools.product(KINDS, [None, False], ["", "bias", "padding"])
WAYS = ["plain", "with a plan", "with a plan and hooks", "with gradients"]


@pytest.mark.parametrize(("case", "way", "memory"), covering(list(CASES), WAYS, MEMORIES, times=4), indirect=["memory"])
def test_steps_are_one_pass(case: tuple[str, bool | None, str], way: str, memory: None) -> None:
    """The beams of two sentences cross before most steps; they share a source, or have one each if it has a mask."""
    kind, table, option = case
    module, length = module_of(kind), sum(CHUNKS)
    if way == "with a plan and hooks":
        module.apply(lambda layer: add_hook(layer, before=table is None) if isinstance(layer, Linear) else None)
    source, own, generator = source_of(module), not module.encoder_decoder, torch.Generator().manual_seed(1)
    each_row = [] if source is None else [one.repeat_interleave(BEAM, 0) for one in (source, PADDING)]
    each_row = each_row[:1] if option == "bias" else each_row
    given = [source, PADDING] if source is not None and not option else each_row
    bias = random(1, module.num_heads, length, 4 if kind == "source" else length) if option == "bias" else None
    x = random(2 * BEAM, length, DIM).requires_grad_(way == "with gradients")
    late = torch.arange(length) >= sum(CHUNKS[:3])
    row, hidden = x, (random(2 * BEAM, length) > 0.7) & (option == "padding") & late
    state, plan, seen, got, wanted = IncrementalState(2, BEAM), StepPlan(), 0, list[Tensor](), list[Tensor]()
    state.beam_indirection = table
    for step, new in enumerate(CHUNKS):
        end, asked = seen + new, step == 7
        maps = list[Tensor]()
        module.on_weights = maps.append if asked else None
        padding = {"key_padding_mask": hidden[:, seen:end]} if own and option == "padding" and step > 2 else {}
        options = {**padding, **masks_of(kind, bias, seen, new), "rotation": rotation_of(kind, seen, new)}
        with torch.set_grad_enabled(way == "with gradients"), nullcontext() if way == "plain" else plan.active():
            out, weights = module(row[:, seen:end], *given, **options, incremental_state=state, need_weights=asked)
        padding = {"key_padding_mask": hidden[:, :end]} if own else {}
        options = {**padding, **masks_of(kind, bias, 0, end), "rotation": rotation_of(kind, 0, end)}
        whole, over = module(row[:, :end], *each_row, **options, need_weights=asked)
        torch.testing.assert_close(out, whole[:, seen:], rtol=0, atol=1e-12)
        if asked:
            torch.testing.assert_close(weights, over[:, seen:], rtol=0, atol=1e-12)
            for one, other in zip(maps[: len(maps) // 2], maps[len(maps) // 2 :], strict=True):  # of each head
                torch.testing.assert_close(one, other[:, :, seen:], rtol=0, atol=1e-12)
            assert maps
        got.append(out)
        wanted.append(whole[:, seen:])
        parents = torch.randint(BEAM, (2, BEAM), generator=generator)
        parents = torch.arange(BEAM).expand(2, BEAM) if step % 3 == 2 else parents
        seen = end
        state[module.state_key] = module.reorder_state_beams(state[module.state_key], parents)
        row, hidden = (one[rows_of_parents(parents)] for one in (row, hidden))
    if way == "with gradients":
        losses = [torch.cat(outs, dim=1).square().sum() for outs in (got, wanted)]
        mine, theirs = (torch.autograd.grad(loss, x, retain_graph=True) for loss in losses)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
