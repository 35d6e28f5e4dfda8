"""Convolutions against PyTorch's own, layer specifications, and weights that are cached."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parametrize

from seqgen.core.errors import ConfigError
from seqgen.modules.convolution import (
    ConvolutionSpec,
    ConvTBC,
    LinearizedConvolution,
    parse_choices,
    parse_convolutions,
    weight_norm_conv,
)
from seqgen.modules.linear import Linear, weight_norm_linear


def conv1d(x: Tensor, conv: ConvTBC) -> Tensor:
    """The same by PyTorch's convolution: channels second, weight (out, in, kernel)."""
    padded = F.pad(x, (0, 0, *conv.padding)).transpose(1, 2)
    return F.conv1d(padded, conv.weight.permute(2, 1, 0), conv.bias).transpose(1, 2)


@pytest.mark.parametrize("kernel_width", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", [ConvTBC, LinearizedConvolution])
def test_convolution_and_its_gradients(kind: type[ConvTBC], kernel_width: int) -> None:
    torch.manual_seed(0)
    conv = kind(3, 5, kernel_width).double()
    x = torch.randn(4, 7, 3, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(4, 7, 5, dtype=torch.float64)
    results = []
    for out in (conv(x), conv1d(x, conv)):
        gradients = torch.autograd.grad(out, (x, conv.weight, conv.bias), upstream)
        results.append((out, *gradients))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_convolution_by_hand() -> None:
    conv = ConvTBC(1, 1, 3)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1))
        conv.bias.fill_(0.5)
    # each output is the one before, ten times the current and a hundred times the next
    assert conv(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist() == [210.5, 321.5, 32.5]


def test_an_even_convolution_by_hand() -> None:
    conv = ConvTBC(1, 1, 2)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([1.0, 10.0]).view(2, 1, 1))
    # each output is the current one and ten times the next
    assert conv(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist() == [21.0, 32.0, 3.0]


@torch.no_grad()
@pytest.mark.parametrize("kernel_width", [1, 2, 3, 5])
@pytest.mark.parametrize("chunks", [[1] * 8, [3, 1, 4], [8], [2, 6]])
def test_linearized_convolution_step_by_step(kernel_width: int, chunks: list[int]) -> None:
    torch.manual_seed(0)
    conv = weight_norm_conv(LinearizedConvolution(3, 4, kernel_width)).double().eval()
    x = torch.randn(2, 8, 3, dtype=torch.float64)
    state: Any = {}
    got = torch.cat([conv(part, state) for part in x.split(chunks, dim=1)], dim=1)
    torch.testing.assert_close(got, conv(x))
    for module_state in state.values():
        assert module_state["input_buffer"].shape == (2, kernel_width - 1, 3)


def test_initial_variance_is_kept_through_the_gate() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 30, 128) * (torch.rand(64, 30, 128) < 0.8)  # variance 1 before dropout of 0.2 without rescaling
    conv = weight_norm_conv(ConvTBC(128, 256, 3), dropout=0.2)
    assert conv(x / 0.8)[:, 1:-1].var().item() == pytest.approx(4, rel=0.1)
    linear = weight_norm_linear(128, 256, dropout=0.2)
    assert linear(x / 0.8).var().item() == pytest.approx(1, rel=0.1)


def test_weight_normalization_is_per_output() -> None:
    """Scaling ``v`` changes nothing, scaling ``g`` scales one output channel."""
    torch.manual_seed(0)
    for module, g_shape in (
        (weight_norm_conv(ConvTBC(3, 4, 2)), (1, 1, 4)),
        (weight_norm_linear(3, 4), (4, 1)),
    ):
        before = module.weight.detach().clone()
        weights = module.parametrizations.weight
        assert weights.original0.shape == g_shape
        with torch.no_grad():
            weights.original1.mul_(3)
            weights.original0.view(-1)[2] *= 2
        after = module.weight.detach()
        if isinstance(module, Linear):
            before, after = before.t(), after.t()
        torch.testing.assert_close(after[..., [0, 1, 3]], before[..., [0, 1, 3]])
        torch.testing.assert_close(after[..., 2], 2 * before[..., 2])


def test_a_cached_weight_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = weight_norm_linear(3, 4)
    calls = []
    norm = linear.parametrizations.weight[0]
    original = norm.forward
    monkeypatch.setattr(norm, "forward", lambda *args: calls.append(1) or original(*args))
    x = torch.randn(2, 3)

    linear.eval()
    with torch.no_grad():
        first = linear(x)
        assert torch.equal(linear(x), first)
        assert len(calls) == 1, "computed once while nothing changes"
        linear.eval()
        linear(x)
        assert len(calls) == 2, "a new evaluation computes it again"
    linear(x)
    linear(x)
    assert len(calls) == 4, "never cached where gradients are recorded"
    with torch.no_grad():
        linear.train()
        linear(x)
        linear(x)
        assert len(calls) == 6, "never cached in training"


@torch.no_grad()
def test_a_cached_weight_can_lose_its_parametrization() -> None:
    linear = weight_norm_linear(3, 4).eval()
    x = torch.randn(2, 3)
    before = linear(x)
    parametrize.remove_parametrizations(linear, "weight")
    torch.testing.assert_close(linear(x), before)
    linear.weight.mul_(2)
    torch.testing.assert_close(linear(x) - linear.bias, 2 * (before - linear.bias))


def test_specifications() -> None:
    small, large = ConvolutionSpec(512, 3), ConvolutionSpec(1024, 1)
    assert parse_convolutions("k", "[(512, 3)] * 2 + [(1024, 1)]") == [small, small, large]
    assert parse_convolutions("k", " [(512, 3), (512, 3, 2)]") == [small, ConvolutionSpec(512, 3, 2)]
    assert parse_convolutions("k", "([(512, 3)] + [(1024, 1)]) * 2") == [small, large] * 2
    assert parse_convolutions("k", "[(8, 2, 0)]") == [ConvolutionSpec(8, 2, 0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read ''"),
        ("(512, 3)", "must be a list"),
        ("[]", "at least one layer"),
        ("[512]", "layer 0 is 512"),
        ("[(512, 3), (0, 3)]", "layer 1 is"),
        ("[(512, 3, 2)]", "layer 0 is (512, 3, 2), but"),
        ("[(512, 3)] * 100000000", "more than 1000 layers"),
        ("[(512, 3)] * 600 + [(512, 3)] * 401", "more than 1000 layers"),
        ("[(9 ** 9 ** 9 ** 9, 3)]", "9 ** 9"),
        ("__import__('os').getcwd()", "__import__"),
        ("[" * 10000, "cannot read"),
    ],
)
def test_bad_specifications(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_convolutions("model.encoder_layers", text)
    assert str(error.value).startswith("model.encoder_layers: ")
    assert message in str(error.value)


def test_choices() -> None:
    assert parse_choices("k", "True", 3) == [True] * 3
    assert parse_choices("k", "False", 2) == [False] * 2
    assert parse_choices("k", "[True] + [False, True]", 3) == [True, False, True]
    with pytest.raises(ConfigError, match=r"k: '\[True\]' must be .* one for each of 3 layers"):
        parse_choices("k", "[True]", 3)
    with pytest.raises(ConfigError, match="one for each of 2 layers"):
        parse_choices("k", "[1, 0]", 2)
    with pytest.raises(ConfigError, match="cannot read 'yes'"):
        parse_choices("k", "yes", 2)
