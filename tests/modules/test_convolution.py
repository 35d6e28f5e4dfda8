"""Convolutions against PyTorch's own, layer specifications, and weights that are cached."""

import pytest
import torch
import torch.nn.functional as F

from seqgen.modules.convolution import (
    ConvolutionSpec,
    ConvTBC,
    LinearizedConvolution,
    parse_convolutions,
    weight_norm_conv,
)
from seqgen.modules.linear import Linear, weight_norm_linear


@pytest.mark.parametrize("kernel_width", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", [ConvTBC, LinearizedConvolution])
def test_convolution_and_its_gradients(kind: type[ConvTBC], kernel_width: int) -> None:
    """PyTorch's has channels second, and weights (out, in, kernel); an odd number of zeros has one more at the end."""
    torch.manual_seed(0)
    conv = kind(3, 5, kernel_width).double()
    x = torch.randn(4, 7, 3, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(4, 7, 5, dtype=torch.float64)
    before = kernel_width - 1 if kind is LinearizedConvolution else (kernel_width - 1) // 2
    padded = F.pad(x, (0, 0, before, kernel_width - 1 - before)).transpose(1, 2)
    wanted = F.conv1d(padded, conv.weight.permute(2, 1, 0), conv.bias).transpose(1, 2)
    found, originals = (
        [out, *torch.autograd.grad(out, (x, conv.weight, conv.bias), upstream)] for out in (conv(x), wanted)
    )
    torch.testing.assert_close(found, originals)


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
    for module, g_shape in ((weight_norm_conv(ConvTBC(3, 4, 2)), (1, 1, 4)), (weight_norm_linear(3, 4), (4, 1))):
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


def test_specifications() -> None:
    small, large = ConvolutionSpec(512, 3), ConvolutionSpec(1024, 1)
    assert parse_convolutions("k", "[(512, 3)] * 2 + [(1024, 1)]") == [small, small, large]
    assert parse_convolutions("k", " [(512, 3), (512, 3, 2)]") == [small, ConvolutionSpec(512, 3, 2)]
    assert parse_convolutions("k", "([(512, 3)] + [(1024, 1)]) * 2") == [small, large] * 2
    assert parse_convolutions("k", "[(8, 2, 0)]") == [ConvolutionSpec(8, 2, 0)]
