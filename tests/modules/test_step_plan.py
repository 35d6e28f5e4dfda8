"""Steps with a plan give what steps without one give, and see hooks, subclasses and new weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules

from seqgen.extend import IncrementalState, Linear, MultiheadAttention, RMSNorm
from seqgen.modules.step_plan import StepPlan


class Shifted(Linear):
    """A linear layer with another ``forward``."""

    def forward(self, input: Tensor) -> Tensor:
        """Add one."""
        return super().forward(input) + 1


each_module = pytest.mark.parametrize(
    "make", [lambda: Linear(8, 6), lambda: Shifted(8, 6), lambda: RMSNorm(8), lambda: RMSNorm(8, zero_centered=True)]
)


def layer_of(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    layer = make().eval()
    nn.init.normal_(layer.weight)  # type: ignore[arg-type]
    return layer


@each_module
def test_a_plan_holds_for_one_batch(make: Callable[[], nn.Module]) -> None:
    """A layer gives what it gives without a plan, in a new plan also after its weight has changed."""
    layer, x = layer_of(make), torch.randn(5, 8)
    for _ in range(2):
        plan = StepPlan()
        with torch.inference_mode():
            wanted = layer(x)
            with plan.active():
                torch.testing.assert_close(layer(x), wanted, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(layer(x[:2]), wanted[:2], rtol=1e-5, atol=1e-6)
        assert plan
        with torch.no_grad():
            layer.weight.mul_(-2)  # type: ignore[operator]
    with StepPlan().active():  # with gradients
        assert layer(x).requires_grad


def before(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0] + 1,)


def after(_: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
    return 2 * out


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "before": lambda layer: layer.register_forward_pre_hook(before),
    "after": lambda layer: layer.register_forward_hook(after),
    "before all": lambda layer: of_all_modules.register_module_forward_pre_hook(before),
    "after all": lambda layer: of_all_modules.register_module_forward_hook(after),
}


@torch.inference_mode()
@each_module
@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
def test_hooks_are_called(make: Callable[[], nn.Module], register: Callable[[nn.Module], Any]) -> None:
    """test_attention.py tests the same of the projections of attention."""
    layer, x = layer_of(make), torch.randn(5, 8)
    plain = layer(x)
    with register(layer):
        wanted = layer(x)
        with StepPlan().active():
            torch.testing.assert_close(layer(x), wanted)
    assert (wanted - plain).abs().max() > 0.1


class Doubled(MultiheadAttention):
    """Attention whose values are twice as large."""

    def own_heads(self, query: Tensor, rotation: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Double the values."""
        q, k, v = super().own_heads(query, rotation)
        return q, k, 2 * v


@torch.inference_mode()
def test_a_subclass_of_attention_and_who_asks_for_weights_are_not_skipped() -> None:
    found, seen = [], list[Tensor]()
    for kind, receiver in ((MultiheadAttention, None), (Doubled, None), (MultiheadAttention, seen.append)):
        torch.manual_seed(0)
        layer, state = kind(24, 3, bias=False).double().eval(), IncrementalState(2, 3)
        layer.on_weights = receiver
        with StepPlan().active():
            steps = [layer(x, incremental_state=state)[0] for x in torch.randn(4, 6, 1, 24, dtype=torch.float64)]
        found.append(torch.cat(steps))
    torch.testing.assert_close(found[1], 2 * found[0])
    torch.testing.assert_close(found[2], found[0])
    assert len(seen) == 4
