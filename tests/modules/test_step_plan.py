"""Steps with a plan give what steps without one give, and see hooks, subclasses and new weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqgen.core.incremental_state import IncrementalState
from seqgen.modules.linear import Linear
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.modules.positions import RelativePositionBias
from seqgen.modules.rms_norm import RMSNorm
from seqgen.modules.step_plan import StepPlan

DIM, STEPS = 24, 70
"""More steps than a block of any memory has positions."""


def attention(kind: type[MultiheadAttention] = MultiheadAttention, **options: Any) -> MultiheadAttention:
    torch.manual_seed(0)
    return kind(DIM, 3, **options).double().eval()


def decode(layer: MultiheadAttention, table: bool, sentences: int, plan: StepPlan | None, bias: bool) -> Tensor:
    """The outputs of steps with three beams that cross at every step, ``(STEPS, rows, DIM)``."""
    random = torch.Generator().manual_seed(1)
    state = IncrementalState(sentences, 3)
    state.beam_indirection = table
    source = torch.rand(sentences, 5, DIM, generator=random, dtype=torch.float64)
    padding = torch.tensor([[False] * 3 + [True] * 2, [False] * 5])[:sentences] if sentences > 1 else None
    relative = RelativePositionBias(3, 8, 20, bidirectional=False).double()
    nn.init.normal_(relative.weight, generator=random)
    found = []
    with torch.inference_mode(), plan.active() if plan is not None else nullcontext():
        for step in range(STEPS):
            x = torch.rand(3 * sentences, 1, DIM, generator=random, dtype=torch.float64)
            mask = relative(step, 1, step + 1) if bias else None
            memory = (
                {"encoder_out": source, "key_padding_mask": padding} if layer.encoder_decoder else {"attn_mask": mask}
            )
            found.append(layer(x, **memory, incremental_state=state)[0].squeeze(1))
            parents = torch.randint(3, (sentences, 3), generator=random)
            state[layer.state_key] = layer.reorder_state_beams(state[layer.state_key], parents)
    return torch.stack(found)


@pytest.mark.parametrize("options", [{}, {"encoder_dim": DIM}, {"scale": 1.0}, {"bias": False}])
@pytest.mark.parametrize("sentences", [1, 2])
@pytest.mark.parametrize(("table", "bias"), [(False, False), (False, True), (True, False), (True, True)])
def test_attention(options: dict[str, Any], sentences: int, table: bool, bias: bool) -> None:
    layer, plan = attention(**options), StepPlan()
    wanted = decode(layer, table, sentences, None, bias)
    torch.testing.assert_close(decode(layer, table, sentences, plan, bias), wanted, rtol=0, atol=1e-12)
    assert plan


def test_attention_of_a_subclass_and_a_hook() -> None:
    """What a subclass, ``on_weights`` and a hook of a projection change is not skipped."""

    class Doubled(MultiheadAttention):
        def own_heads(self, query: Tensor, rotation: Any) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v = super().own_heads(query, rotation)
            return q, k, 2 * v

    plain = decode(attention(bias=False), True, 2, StepPlan(), False)
    torch.testing.assert_close(decode(attention(Doubled, bias=False), True, 2, StepPlan(), False), 2 * plain)
    seen: list[Tensor] = []
    layer = attention(bias=False)
    layer.on_weights = seen.append
    torch.testing.assert_close(decode(layer, True, 2, StepPlan(), False), plain)
    assert len(seen) == STEPS
    layer = attention(bias=False)
    layer.out_proj.register_forward_hook(lambda module, arguments, output: 3 * output)
    torch.testing.assert_close(decode(layer, True, 2, StepPlan(), False), 3 * plain)


@pytest.mark.parametrize("encoder_decoder", [False, True])
def test_masks_of_a_step(encoder_decoder: bool) -> None:
    """A step masks the source by ``attn_mask``, and its new positions by ``key_padding_mask``."""
    layer = attention(encoder_dim=DIM if encoder_decoder else None)
    random = torch.Generator().manual_seed(1)
    source = torch.rand(2, 5, DIM, generator=random, dtype=torch.float64)

    def outputs(plan: StepPlan | None) -> Tensor:
        random = torch.Generator().manual_seed(2)
        state, found = IncrementalState(2), []
        with torch.inference_mode(), plan.active() if plan is not None else nullcontext():
            for _ in range(6):
                x = torch.rand(2, 1, DIM, generator=random, dtype=torch.float64)
                padding = torch.rand(2, 1, generator=random) < 0.5
                allowed = torch.rand(2, 1, 1, 5, generator=random) < 0.7
                masks = (
                    {"encoder_out": source, "attn_mask": allowed} if encoder_decoder else {"key_padding_mask": padding}
                )
                found.append(layer(x, **masks, incremental_state=state)[0])
        return torch.cat(found)

    torch.testing.assert_close(outputs(StepPlan()), outputs(None), rtol=0, atol=1e-12)


class Shifted(Linear):
    """A linear layer with another ``forward``."""

    def forward(self, input: Tensor) -> Tensor:
        """Add one."""
        return super().forward(input) + 1


@pytest.mark.parametrize("make", [lambda: Linear(8, 6), lambda: RMSNorm(8), lambda: RMSNorm(8, zero_centered=True)])
def test_a_plan_holds_for_one_batch(make: Callable[[], nn.Module]) -> None:
    """A layer gives what it gives without a plan, in a new plan also after its weight has changed."""
    layer, x = make().eval(), torch.randn(5, 8)
    nn.init.normal_(layer.weight)  # type: ignore[arg-type]
    for _ in range(2):
        plan = StepPlan()
        with torch.inference_mode():
            wanted = layer(x)
            with plan.active():
                torch.testing.assert_close(layer(x), wanted, rtol=0, atol=1e-6)
                torch.testing.assert_close(layer(x[:2]), wanted[:2], rtol=0, atol=1e-6)
        assert plan
        with torch.no_grad():
            layer.weight.mul_(-2)  # type: ignore[operator]
    with StepPlan().active():  # with gradients
        assert layer(x).requires_grad


def test_a_forward_of_a_subclass_is_called() -> None:
    layer, x = Shifted(4, 4).eval(), torch.randn(2, 4)
    with torch.inference_mode(), StepPlan().active():
        torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias) + 1)
