"""The product of a linear layer in training equals PyTorch's, gradients included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.modules import linear as linear_module
from seqgen.modules.kernels import onednn_product
from seqgen.modules.linear import TRAINING, TrainingKernel, linear
from seqgen.training.cross_entropy import cross_entropy

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN here")


def inputs(*shape: int, out_features: int = 11, bias: bool = True) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = [shape, (out_features, shape[-1]), *([(out_features,)] if bias else [])]
    return [torch.randn(size, requires_grad=True) for size in sizes]


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "_LARGE_PRODUCT", 0)
    monkeypatch.setattr(TRAINING, "onednn", True)


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 6), (1, 1), (130, 70)])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_that_of_pytorch(shape: tuple[int, ...], bias: bool) -> None:
    tensors = inputs(*shape, bias=bias)
    results = []
    for multiply in (linear, F.linear):
        out = multiply(*tensors)
        results.append([out, *torch.autograd.grad((out * out.detach().cos()).sum(), tensors)])
    assert "OneDNN" in str(linear(*tensors).grad_fn) + str(linear(*tensors).grad_fn.next_functions)  # type: ignore[union-attr]
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_layouts_of_any_kind() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(6, 9).t().requires_grad_(), torch.randn(6, 8)[:, ::2].t().requires_grad_()
    results = [torch.autograd.grad(multiply(x, weight).sin().sum(), [x, weight]) for multiply in (linear, F.linear)]
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_only_what_is_wanted_is_computed() -> None:
    x, weight, bias = inputs(4, 5)
    out = linear(x.detach(), weight, bias.detach())
    (gradient,) = torch.autograd.grad(out.sum(), [weight])
    torch.testing.assert_close(gradient, x.detach().sum(0).expand(11, 5))


def test_the_loss_uses_its_memory_again() -> None:
    x, weight, _ = inputs(64, 5)
    logits = linear(x, weight)
    place = logits.data_ptr()
    loss, _, _ = cross_entropy(logits, torch.arange(64) % 11)
    gradient = loss.grad_fn.gradients[0]  # type: ignore[union-attr]
    assert gradient.data_ptr() == place
    got = torch.autograd.grad(loss, [x, weight])
    wanted = torch.autograd.grad(
        F.cross_entropy(F.linear(x, weight), torch.arange(64) % 11, reduction="sum"), [x, weight]
    )
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_several_processes_compute_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(linear_module, "time_calls", lambda calls: pytest.fail("nothing is measured"))
    kernel = TrainingKernel()
    kernel.choose()
    assert kernel.onednn is None
    assert kernel.uses_onednn()


def test_products_of_gradients_have_no_expanded_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a sum has one element in memory; oneDNN takes half a minute for a product with such a matrix."""
    strides: list[int] = []

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        strides.extend([*x.stride(), *weight.stride()])
        return onednn_product(x, weight, bias)

    monkeypatch.setattr(linear_module, "onednn_product", product)
    x, weight = inputs(9, 5, bias=False)
    found = torch.autograd.grad(linear(x, weight).sum(), [x, weight])
    wanted = torch.autograd.grad(F.linear(x, weight).sum(), [x, weight])
    torch.testing.assert_close(found, wanted)
    assert len(strides) == 12
    assert 0 not in strides
