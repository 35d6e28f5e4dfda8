"""Attention against arithmetic done by hand, one kernel against the other, and what the cache holds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.core.errors import ConfigError
from seqgen.core.incremental_state import IncrementalState
from seqgen.modules import attention as arithmetic
from seqgen.modules.attention import attend, fold_beams, unfold_beams
from seqgen.modules.dropout import Dropout
from seqgen.modules.kv_cache.growing import GrowingCache, StaticCache
from seqgen.modules.kv_cache.indirection import IndirectionCache
from seqgen.modules.kv_cache.protocol import KeysAndValues
from seqgen.modules.masks import QueryPositions, padding_mask_of, start_offsets_of_rows, step_mask
from seqgen.modules.multihead_attention import MultiheadAttention


def test_attention_by_hand() -> None:
    """Scores ln 1 and ln 3 give the weights 1/4 and 3/4."""
    query = torch.tensor([[[[1.0]]]])
    key = torch.tensor([[[[0.0], [math.log(3)]]]])
    value = torch.tensor([[[[8.0], [16.0]]]])
    out, weights = attend(query, key, value, need_weights=True)
    torch.testing.assert_close(weights, torch.tensor([[[[0.25, 0.75]]]]))
    torch.testing.assert_close(out, torch.tensor([[[[14.0]]]]))


MASKS = {
    "none": None,
    "bool": torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.7,
    "keys": torch.tensor([[True] * 7, [True] * 4 + [False] * 3])[:, None, None, :],
    "float": torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0)).double(),
    "nothing allowed": torch.zeros(2, 1, 5, 7, dtype=torch.bool),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("scale", [None, 1.0])
def test_both_kernels_agree(mask: Tensor | None, scale: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7)]
    if mask is not None and mask.dtype == torch.bool and mask.any():
        mask = mask | (torch.arange(7) == 0)  # no query is left without a key, where the kernels may differ
    results = []
    for small in (10**9, 0):
        monkeypatch.setattr(arithmetic, "_SMALL", small)
        monkeypatch.setattr(arithmetic, "_FEW", 0)
        out, _ = attend(*tensors, mask, scale=scale)
        results.append((out, *torch.autograd.grad(out.square().sum(), tensors)))
    for plain, fused in zip(*results, strict=True):
        assert plain.isfinite().all()
        assert fused.isfinite().all()
        if mask is None or mask.any():
            torch.testing.assert_close(plain, fused)


def test_causal_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, 6, 4, dtype=torch.float64) for _ in range(3)]
    wanted, _ = attend(*tensors, step_mask(0, 6, None, torch.device("cpu")))
    for small in (10**9, 0):
        monkeypatch.setattr(arithmetic, "_SMALL", small)
        monkeypatch.setattr(arithmetic, "_FEW", 0)
        torch.testing.assert_close(attend(*tensors, is_causal=True)[0], wanted)


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
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 4))
    assert not torch.allclose(out, weights @ x)


def test_folding_beams() -> None:
    # Two sentences of two beams, each row with two queries: rows 0 1, 2 3 and 4 5, 6 7 become 0 1 2 3 and 4 5 6 7.
    x = torch.arange(8).view(4, 2, 1, 1)
    folded = fold_beams(x, 2)
    assert folded.shape == (2, 1, 4, 1)
    assert folded.flatten(1).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert torch.equal(unfold_beams(folded, 4), x.view(4, 2, 1))
    torch.manual_seed(0)
    y = torch.randn(6, 2, 3, 5)
    for key_rows in (6, 3, 2, 1):
        torch.testing.assert_close(unfold_beams(fold_beams(y, key_rows), 6), y.flatten(2))


def by_hand(module: MultiheadAttention, query: Tensor, source: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of one row, head by head; ``allowed`` ``(T, K)``."""
    inner = module.num_heads * module.head_dim
    if module.encoder_decoder:
        q, kv = module.q_proj(query), module.kv_proj(source)
        k, v = kv[:, :inner], kv[:, inner:]
    else:
        q, k, v = module.in_proj(query).split(inner, dim=-1)
    outs, maps = [], []
    for head in range(module.num_heads):
        part = slice(head * module.head_dim, (head + 1) * module.head_dim)
        scores = q[:, part] @ k[:, part].t() / math.sqrt(module.head_dim)
        weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
        outs.append(weights @ v[:, part])
        maps.append(weights)
    return module.out_proj(torch.cat(outs, dim=-1)), torch.stack(maps).mean(0)


@torch.no_grad()
@pytest.mark.parametrize("head_dim", [None, 6])
def test_self_attention(head_dim: int | None) -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(8, 2, head_dim=head_dim).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [True, False, False, True, False]])
    for causal in (False, True):
        out, weights = module(x, key_padding_mask=padding, is_causal=causal, need_weights=True)
        unasked, none = module(x, key_padding_mask=padding, is_causal=causal)
        torch.testing.assert_close(unasked, out)
        assert none is None
        for row in range(2):
            allowed = (~padding[row]).expand(5, 5)
            allowed = allowed.tril() if causal else allowed
            begin = 1 if causal and row == 1 else 0  # the first query of row 1 may see nothing
            wanted, wanted_weights = by_hand(module, x[row], x[row], allowed)
            torch.testing.assert_close(out[row, begin:], wanted[begin:])
            torch.testing.assert_close(weights[row, begin:], wanted_weights[begin:])


@torch.no_grad()
def test_encoder_decoder_attention_with_shared_keys() -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(8, 2, encoder_dim=6).double()
    x, source = torch.randn(6, 3, 8, dtype=torch.float64), torch.randn(2, 4, 6, dtype=torch.float64)
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    out, weights = module(x, source, key_padding_mask=padding, need_weights=True)
    for row in range(6):
        wanted, wanted_weights = by_hand(module, x[row], source[row // 3], (~padding[row // 3]).expand(3, 4))
        torch.testing.assert_close(out[row], wanted)
        torch.testing.assert_close(weights[row], wanted_weights)


@torch.no_grad()
def test_padding_among_remembered_keys() -> None:
    """A mask may come at any step; what came without one had no padding."""
    torch.manual_seed(0)
    module = MultiheadAttention(8, 2).double()
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    late = torch.tensor([[False], [True]])
    state: Any = {}
    module(x[:, :2], incremental_state=state)
    module(x[:, 2:3], key_padding_mask=late, incremental_state=state)
    (module_state,) = state.values()
    assert module_state["cache"].view().padding_mask.tolist() == [[False] * 3, [False, False, True]]
    out, _ = module(x[:, 3:], incremental_state=state)
    for row, allowed in enumerate(([True] * 4, [True, True, False, True])):
        wanted, _ = by_hand(module, x[row], x[row], torch.tensor(allowed).expand(4, 4))
        torch.testing.assert_close(out[row, 0], wanted[3])


@torch.no_grad()
def test_keys_of_the_encoder_stay_one_per_sentence() -> None:
    """They are projected once, are not expanded to beams, and do not move while beams change places."""
    module = MultiheadAttention(8, 2, encoder_dim=6)
    state: Any = {}
    module(torch.randn(6, 1, 8), torch.randn(2, 4, 6), incremental_state=state)
    (module_state,) = state.values()
    cache = module_state["cache"]
    assert isinstance(cache, StaticCache)
    keys = cache.view().keys
    assert keys.shape == (2, 2, 4, 4)
    assert cache.share == 3
    module(torch.randn(6, 1, 8), None, incremental_state=state)  # the encoder's output is not read again
    assert cache.view().keys is keys
    moved = module.reorder_state_beams(module_state, torch.tensor([[2, 0, 1], [0, 0, 0]]))["cache"]
    assert moved.view().keys is keys
    kept = module.select_state(module_state, torch.tensor([1]), beam_size=3)["cache"]
    assert torch.equal(kept.view().keys, keys[1:])
    assert kept.share == 3
    crossed = module.reorder_state(module_state, torch.tensor([5, 0, 1]))["cache"]
    assert torch.equal(crossed.view().keys, keys[[1, 0, 0]])
    assert crossed.share == 1


def test_padding_of_merged_keys() -> None:
    """Rows keep their padding on either side; the shorter batch is padded at the end of the source."""
    left = torch.tensor([[True, True, False], [False, False, False]])
    longer = torch.tensor([[True, False, False, False, False]])

    def keys(mask: Tensor) -> KeysAndValues:
        numbers = torch.arange(mask.numel() * 4.0).view(mask.size(0), 1, mask.size(1), 4)
        return KeysAndValues(numbers, -numbers, mask)

    for first, second in ((left, longer), (longer, left)):
        one, two = (StaticCache().append(keys(mask), mask.size(0)) for mask in (first, second))
        got = one.merge(two).view().padding_mask
        assert got is not None
        assert torch.equal(got, torch.cat([F.pad(mask, (0, 5 - mask.size(1)), value=True) for mask in (first, second)]))
        one, two = (GrowingCache().append(keys(mask), mask.size(0)) for mask in (first, second))
        got = one.merge(two).view().padding_mask
        assert got is not None  # positions that are missing on the left are hidden by the start offsets
        assert torch.equal(got, torch.cat([F.pad(mask, (5 - mask.size(1), 0)) for mask in (first, second)]))


@torch.no_grad()
@pytest.mark.parametrize("beam_indirection", [True, False])
def test_causal_steps_of_several_positions_equal_one_pass(beam_indirection: bool) -> None:
    """The first step, one of three positions and one of a single position, without a mask from outside."""
    torch.manual_seed(0)
    module = MultiheadAttention(8, 2).double()
    x = torch.randn(4, 6, 8, dtype=torch.float64)
    state = IncrementalState(2, 2)
    state.beam_indirection = beam_indirection
    steps = [module(part, is_causal=True, incremental_state=state)[0] for part in x.split([2, 3, 1], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), module(x, is_causal=True)[0])


@torch.no_grad()
def test_weights_of_beams_that_stay_in_place() -> None:
    """They are those of each row's own keys, and asking for them does not change the cache."""
    torch.manual_seed(0)
    module = MultiheadAttention(8, 2).double()
    x = torch.randn(4, 3, 8, dtype=torch.float64)
    state = IncrementalState(2, 2)
    state.beam_indirection = True
    for position in range(2):
        module(x[:, position : position + 1], incremental_state=state)
    parents = torch.tensor([[1, 0], [1, 1]])
    state[module.state_key] = module.reorder_state_beams(state[module.state_key], parents)
    x[:, :2] = x[[1, 0, 3, 3], :2]
    out, weights = module(x[:, 2:], incremental_state=state, need_weights=True)
    wanted, wanted_weights = module(x, is_causal=True, need_weights=True)
    torch.testing.assert_close(out, wanted[:, 2:])
    torch.testing.assert_close(weights, wanted_weights[:, 2:])
    assert isinstance(state[module.state_key]["cache"], IndirectionCache)


def test_query_positions() -> None:
    cpu = torch.device("cpu")
    queries = QueryPositions(2, 2, cpu)
    assert queries.distances.tolist() == [[2, 1, 0, -1], [3, 2, 1, 0]]
    assert queries.restrict(queries.distances < 2).int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    bias = queries.restrict(-queries.distances.float())
    assert (bias[0] > -10).tolist() == [True, True, True, False]
    assert bias.isfinite().all()
    assert not queries.is_plain_causal
    assert QueryPositions(0, 2, cpu).is_plain_causal
    made: list[int] = []
    for key in (bias, bias, cpu, bias):
        queries.once(key, lambda: made.append(1) or bias)
    assert len(made) == 3
    padding = torch.tensor([[False, True]])
    assert QueryPositions(0, 2, cpu, causal=False).allowed is None
    assert QueryPositions(0, 2, cpu, False, padding_mask=padding).allowed.tolist() == [[[[True, False]]]]


def test_initial_projections_are_independent_glorot_matrices() -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(64, 4)
    bound = math.sqrt(6 / 128) * math.sqrt(0.5)
    for block in module.in_proj.weight.split(64):
        assert block.abs().max() <= bound
        assert block.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="the hidden size 10 is not a multiple of the 4 attention heads"):
        MultiheadAttention(10, 4)
    with pytest.raises(ValueError, match="either attn_mask or is_causal"):
        MultiheadAttention(8, 2)(torch.zeros(1, 2, 8), attn_mask=torch.ones(2, 2).bool(), is_causal=True)
    with pytest.raises(ValueError, match="needs the encoder's output"):
        MultiheadAttention(8, 2, encoder_dim=8)(torch.zeros(1, 2, 8))


def test_step_masks() -> None:
    cpu = torch.device("cpu")
    assert step_mask(4, 1, None, cpu) is None
    assert step_mask(2, 2, None, cpu).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    masks = step_mask(2, 2, torch.tensor([0, 1]), cpu)
    assert masks.shape == (2, 1, 2, 4)
    assert masks[1, 0].int().tolist() == [[0, 1, 1, 0], [0, 1, 1, 1]]


def test_starts_of_rows() -> None:
    state = IncrementalState(2)
    assert start_offsets_of_rows(None, 4) is None
    assert start_offsets_of_rows({}, 4) is None
    assert start_offsets_of_rows(state, 4) is None
    state.start_offsets = torch.tensor([0, 3])
    assert start_offsets_of_rows(state, 4).tolist() == [0, 0, 3, 3]
    state.start_offsets = state.start_offsets * 0
    assert start_offsets_of_rows(state, 4) is None


def test_padding_masks() -> None:
    tokens = torch.tensor([[5, 2, 1], [5, 6, 2]])
    assert padding_mask_of(tokens, 1).tolist() == [[False, False, True], [False] * 3]
    assert padding_mask_of(tokens, 0) is None
    assert padding_mask_of(tokens, None) is None
