"""Linear layers that are also fast for few input rows, as in decoding, and matrix products for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.parametrizations import weight_norm

from seqgen.modules.cached_weight import CachedWeight
from seqgen.system.mapped_weights import give_back, is_mapped
from seqgen.system.switches import PREPACKED_WEIGHTS

_LARGE_PRODUCT = 10_000_000
"""Products of at least this many multiplications use oneDNN; its overhead is about 20 µs."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.T + bias`` with gradients.

    PyTorch multiplies float32 matrices on a CPU with MKL, which is slow on some processors. This function uses oneDNN,
    which is part of PyTorch too, and ``F.linear`` where oneDNN cannot be used. Measured on one thread of an AMD EPYC
    (Zen 5), forward, gradient of the input and of the weight, ms: 1024 x 512 x 2048 22, 22, 25 against 31, 28, 26; 1024
    x 512 x 32128 454, 358, 507 against 473, 466, 520.

    Args:
        x: ``(..., in_features)``.
        weight: ``(out_features, in_features)``.
        bias: ``(out_features,)`` or ``None``.

    Returns:
        ``(..., out_features)``.
    """
    if not _applies(x, weight):
        return F.linear(x, weight, bias)
    out: Tensor = _OneDNNLinear.apply(x.reshape(-1, x.size(-1)), weight, bias)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)


def _applies(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and torch.is_grad_enabled()
        and x.numel() * weight.size(0) >= _LARGE_PRODUCT
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and has_onednn()
    )


def has_onednn() -> bool:
    """Whether oneDNN is available and enabled."""
    mkldnn = torch.backends.mkldnn
    available = mkldnn.is_available() and mkldnn.enabled  # type: ignore[no-untyped-call]
    return bool(available) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``a @ b.T`` without gradients; both may have any strides."""
    if a.dtype == torch.float32 and a.device.type == "cpu" and has_onednn():
        return _multiply(a, b)
    return a @ b.t()


def _multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b, bias, "none", [], "")
    return out


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            _multiply(grad, weight.t()) if wants[0] else None,
            _multiply(grad.t(), x.t()) if wants[1] else None,
            grad.sum(0) if ctx.has_bias and wants[2] else None,
        )


Product: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]
"""Maps ``(..., in_features)`` and a bias ``(out_features,)`` or ``None`` to ``(..., out_features)``."""

_LARGE_MATRIX = 256 * 256
"""Number of weights from which matrices are prepacked; below it, the kernel's overhead of 15 µs outweighs the gain."""

_BLOCK = 1024
"""Rows of a matrix that are quantized at a time, so that little memory is needed besides the result."""

_ROWS = 160
"""The number of input rows that weights are prepacked for; such a layout is fast for fewer rows as well."""


_SLOW_ROWS, _PADDED_ROWS = 2, 5
"""A product in float32 of one or two rows is computed with five rows, for which oneDNN needs less time.

With few rows, each sum waits for the one before it. Microseconds with one thread on an AMD EPYC (Zen 5), for 1, 2, 3,
4, 5 and 6 rows: x 512 x 2048: 340, 360, 280, 265, 260, 270; x 512 x 32128: 4,800, 5,900, 4,300, 3,600, 3,500, 3,600. In
bfloat16 and int8 there is no such difference.
"""

_LARGE_TO_PAD = 512 * 1536
"""Number of weights from which padding the rows, which takes 10 microseconds, pays off."""


class Projection(CachedWeight):
    """A module that multiplies by its weight, and keeps the weight prepacked during evaluation.

    On a CPU, the prepacked weight is a copy in oneDNN's blocked layout. The memory of a weight that is mapped from its
    file is then given back (``seqgen.system.mapped_weights``); any other weight needs its memory twice.
    Microseconds on 2 cores of an AMD EPYC 9004, prepacked / ``F.linear``, for rows x in_features x out_features:
    1 x 512 x 512: 90 / 160; 5 x 512 x 2048: 190 / 560; 5 x 512 x 32128: 2,900 / 15,000; 160 x 512 x 32128: 27,000 /
    57,000; 4000 x 512 x 2048: 40,000 / 52,000.
    """

    packs = True
    """Whether to prepack; set it to false on ``Projection``, on a subclass or on one module to switch it off there."""

    int8 = False
    """Whether to multiply in 8-bit integers; see ``int8_product``."""

    bias: nn.Parameter

    def current_weight(self) -> Tensor:
        """The weight in the dtype of the bias; the parameters from which it is computed may be float32."""
        weight = super().current_weight()
        return weight if self.bias is None else weight.to(self.bias.dtype)

    def matrix(self) -> Tensor:
        """The weight as a matrix ``(out_features, in_features)``."""
        return self.current_weight()

    def project(self, x: Tensor) -> Tensor:
        """Multiply by the weight and add the bias.

        Args:
            x: ``(..., in_features)``.

        Returns:
            ``(..., out_features)``.
        """
        if not self._prepacks(x.device):
            return linear(x, self.matrix(), self.bias)
        return self.kept("product", self.product)(x, self.bias)

    def columns(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Prepare the computation of some outputs only, with the current weight.

        Args:
            ids: ``(U,)`` int64, numbers of the outputs.

        Returns:
            Maps ``(..., in_features)`` to ``(..., U)``, the columns ``ids`` of what ``project`` returns.
        """
        matrix = self.matrix().detach().index_select(0, ids)
        bias = None if self.bias is None else self.bias.detach().index_select(0, ids)
        product = (self._maker(matrix) if self._prepacks(matrix.device) else _plain_product)(matrix)
        return lambda x: product(x, bias)

    def _prepacks(self, device: torch.device) -> bool:
        return (
            not self.training
            and (self.packs or self.int8)
            and PREPACKED_WEIGHTS.is_on()
            and device.type == "cpu"
            and not _must_not_prepack()
        )

    def product(self) -> Product:
        """Prepack the current weight; a small one is used as it is."""
        matrix = self.matrix().detach()
        make = self._maker(matrix)
        product = make(matrix)
        if make is not _plain_product:
            for parameter in self._parameters_of_weight():
                if is_mapped(parameter):
                    give_back(parameter)
        return product

    def _maker(self, matrix: Tensor) -> Callable[[Tensor], Product]:
        """What makes the fastest product with a matrix."""
        if matrix.numel() >= _LARGE_MATRIX:
            if self.int8:
                return int8_product
            if self.packs and matrix.dtype in _packable():
                return packed_product
        return _plain_product


class Linear(Projection, nn.Linear):
    """A faster ``nn.Linear`` with the same parameters; results differ only by the order of summation.

    A parametrized weight, for example a weight-normalized one, is computed once per evaluation.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map ``(..., in_features)`` to ``(..., out_features)``."""
        return self.project(input)


def _plain_product(matrix: Tensor) -> Product:
    return lambda x, bias: F.linear(x, matrix, bias)


def packed_product(matrix: Tensor) -> Product:
    """Prepack a matrix in oneDNN's layout.

    Args:
        matrix: ``(out_features, in_features)``.

    Returns:
        The product with the matrix.
    """
    # The only operator that accepts prepacked weights; torch.compile uses it too.
    multiply = torch.ops.mkldnn._linear_pointwise.default
    packed = torch.ops.mkldnn._reorder_linear_weight.default(matrix.contiguous(), _ROWS)

    def packed_multiply(x: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = multiply(x, packed, bias, "none", [], "")
        return out

    def padded_multiply(x: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.numel() // x.size(-1)
        if not 0 < rows <= _SLOW_ROWS:
            return packed_multiply(x, bias)
        padded = F.pad(x.reshape(rows, -1), (0, 0, 0, _PADDED_ROWS - rows))
        return packed_multiply(padded, bias)[:rows].view(*x.shape[:-1], -1)

    large = matrix.dtype == torch.float32 and matrix.numel() >= _LARGE_TO_PAD
    return padded_multiply if large else packed_multiply


def int8_product(matrix: Tensor) -> Product:
    """Quantize a matrix to 8-bit integers, with one scale for each output; each row of the input has its own scale.

    One scale for the whole input would make each row depend on the others. The kernel takes unsigned inputs: the
    integers -127 to 127 of a row are stored as 1 to 255, with zero point 128.

    Args:
        matrix: ``(out_features, in_features)``.

    Returns:
        The product with the matrix.
    """
    scales = torch.cat([_largest(rows) for rows in matrix.split(_BLOCK)]) / 127
    integers = torch.empty(matrix.shape, dtype=torch.int8)
    for rows, rounded, scale in zip(*(tensor.split(_BLOCK) for tensor in (matrix, integers, scales)), strict=True):
        rounded.copy_((rows / scale).round_())
    packed = torch.ops.onednn.qlinear_prepack.default(integers, None)
    multiply = torch.ops.onednn.qlinear_pointwise.default
    zeros = torch.zeros(matrix.size(0), dtype=torch.int32)
    scales = scales.flatten()
    middle = torch.full((), 128.5)  # 128 and a half, so that truncation rounds to the nearest integer

    def int8_multiply(x: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.size(-1))
        largest = _largest(rows)
        unsigned = torch.addcmul(middle, rows, largest.reciprocal(), value=127).to(torch.uint8)
        out: Tensor = multiply(
            unsigned, 1 / 127, 128, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        out.mul_(largest)
        return (out if bias is None else out.add_(bias)).view(*x.shape[:-1], -1)

    return int8_multiply


def _largest(rows: Tensor) -> Tensor:
    """The largest absolute value of each row of ``(N, C)``, at least 1e-30: ``(N, 1)``."""
    return rows.abs().amax(1, keepdim=True).clamp_(min=1e-30)


def weight_norm_linear(in_features: int, out_features: int, dropout: float = 0.0) -> Linear:
    """A weight-normalized linear layer (Salimans and Kingma 2016).

    It is initialized so that the output has the same variance as the input had before dropout (Gehring et al. 2017).

    Args:
        in_features: features of the input.
        out_features: features of the output.
        dropout: probability with which features of the input are dropped.
    """
    linear = Linear(in_features, out_features)
    nn.init.normal_(linear.weight, std=((1 - dropout) / in_features) ** 0.5)
    nn.init.zeros_(linear.bias)
    weight_norm(linear, dim=0)
    return linear


def _must_not_prepack() -> bool:
    """Whether gradients are recorded, autocast changes dtypes, or a compiler traces the model."""
    return torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()


def _packable() -> tuple[torch.dtype, ...]:
    """The dtypes in which this CPU multiplies by prepacked weights."""
    if not has_onednn():
        return ()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32, torch.bfloat16
    return (torch.float32,)
