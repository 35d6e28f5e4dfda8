"""Linear layers with packed weights give what plain ones give, and never an old weight's result."""

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from seqgen.modules import kernel_choice, linear as module
from seqgen.modules.cached_weight import CachedWeight
from seqgen.modules.kernels import PREPACKED, kernels_for
from seqgen.modules.linear import Linear, weight_norm_linear
from seqgen.modules.step_plan import StepPlan

ROWS = [0, 1, 2, 3, 4, 5, 8, 160]


@pytest.fixture(autouse=True, params=kernels_for(torch.float32), ids=lambda kernel: kernel.name)
def _pack_everything(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with each kernel as the chosen one."""
    monkeypatch.setattr(module, "_LARGE_MATRIX", 1)
    times = lambda kernels, *_: {kernel.name: 1.0 if kernel is request.param else 2.0 for kernel in kernels}  # noqa: E731
    monkeypatch.setattr(kernel_choice, "time_kernels", times)


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_packed_equals_plain(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    layer = Linear(48, 33, bias=bias).to(dtype).eval()
    assert PREPACKED in layer.product().kernels or dtype != torch.float32
    plan = StepPlan()
    for rows in ROWS:
        for shape in ((rows, 48), (rows, 3, 48), (2, rows, 1, 48)):
            x = torch.randn(shape).to(dtype)
            wanted = F.linear(x, layer.weight, layer.bias)
            for context in (nullcontext(), plan.active()):
                with context:
                    product = layer(x)
                torch.testing.assert_close(product, wanted, rtol=0, atol=3e-2 if dtype == torch.bfloat16 else 1e-5)
    x = torch.randn(4, 48, 5).to(dtype).transpose(1, 2)  # not contiguous
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=3e-2)


@torch.no_grad()
def test_a_normalized_weight_is_computed_for_each_gradient() -> None:
    """In training, and where gradients are recorded; otherwise once."""
    layer, x = weight_norm_linear(16, 16).eval(), torch.randn(2, 16)
    assert layer.current_weight() is layer.current_weight()
    for training in (False, True):
        layer.train(training)
        with torch.enable_grad():
            for _ in range(2):  # a second time through the same graph would be an error
                layer(x).sum().backward()
    assert layer.current_weight() is not layer.current_weight()


def set_data(layer: Linear) -> None:
    layer.weight.data = layer.weight.data + 1


def set_data_twice(layer: Linear) -> None:
    """The second tensor may be allocated at the address of the first one."""
    for _ in range(2):
        set_data(layer)


def replace(layer: Linear) -> None:
    layer.weight = nn.Parameter(layer.weight + 1)


def step(layer: Linear) -> None:
    with torch.enable_grad():
        layer(torch.ones(1, 16)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=1.0).step()


CHANGES: list[Callable[[Linear], object]] = [
    *(set_data, set_data_twice, replace, step),
    lambda layer: layer.weight.mul_(2),
    lambda layer: layer.load_state_dict({"weight": torch.randn(16, 16), "bias": torch.randn(16)}),
    lambda layer: layer.load_state_dict({"weight": torch.randn(16, 16), "bias": torch.randn(16)}, assign=True),
    lambda layer: layer.bias.add_(1),
    lambda layer: weight_norm(layer).parametrizations.weight.original0.mul_(2),
    lambda layer: layer.double(),
    lambda layer: layer.bfloat16().float(),
]


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
def test_never_an_old_weight(change: Callable[[Linear], object]) -> None:
    torch.manual_seed(0)
    layer, x = Linear(16, 16).eval(), torch.randn(5, 16)
    before = layer(x)
    change(layer)
    x = x.to(layer.weight.dtype)
    wanted = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), wanted, rtol=0, atol=1e-5)
    assert not torch.equal(layer(x), before)


@torch.no_grad()
def test_copies_pack_for_themselves() -> None:
    layer, x = Linear(16, 16).eval(), torch.randn(2, 16)
    before = layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        twin.weight.mul_(2)
        torch.testing.assert_close(twin(x), F.linear(x, twin.weight, twin.bias))
        assert torch.equal(layer(x), before)


def test_gradients_autocast_and_inference_mode() -> None:
    layer, x = Linear(16, 16).eval(), torch.randn(2, 16)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with torch.inference_mode():
        packed = layer(x)
        made_there = Linear(16, 16).eval()
        torch.testing.assert_close(made_there(x), F.linear(x, made_there.weight, made_there.bias))
        made_there.weight.mul_(2)  # a change that PyTorch does not count
        torch.testing.assert_close(made_there(x), F.linear(x, made_there.weight, made_there.bias))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), packed)


@torch.no_grad()
def test_what_is_made_of_a_weight_is_made_again_when_it_changes() -> None:
    module, made = CachedWeight().eval(), list[Tensor]()
    module.weight = nn.Parameter(torch.ones(2))

    def double() -> Tensor:
        made.append(module.weight * 2)
        return made[-1]

    assert module.kept("double", double) is module.kept("double", double)
    module.weight.add_(1)
    assert module.kept("double", double).tolist() == [4, 4]
    module.weight = nn.Parameter(torch.zeros(2))
    assert module.kept("double", double).tolist() == [0, 0]
    assert len(made) == 3
