"""Kernels: ways to multiply few rows by a weight on a CPU. Results differ only by the order of summation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Multiply: TypeAlias = Callable[[Any, Tensor, Tensor | None], Tensor]
"""Maps a layout of a matrix, rows ``(..., in_features)`` and a bias or ``None`` to ``(..., out_features)``."""


class Kernel(NamedTuple):
    """A way to multiply by a matrix.

    Attributes:
        name: for reports.
        arrange: maps a matrix ``(out_features, in_features)`` to the layout that ``multiply`` reads.
        multiply: multiplies by the matrix.
        suits: whether it is a candidate for a number of rows and of outputs.
    """

    name: str
    arrange: Callable[[Tensor], Any]
    multiply: Multiply
    suits: Callable[[int, int], bool] = lambda rows, outputs: True


# The only operator that accepts prepacked weights; torch.compile uses it too. PyTorch without oneDNN has none.
_onednn_linear: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)


def has_onednn() -> bool:
    """Whether oneDNN is available and enabled."""
    mkldnn = torch.backends.mkldnn
    available = mkldnn.is_available() and mkldnn.enabled  # type: ignore[no-untyped-call]
    return bool(available) and _onednn_linear is not None


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.T + bias`` by oneDNN, without gradients.

    Args:
        x: ``(..., in_features)``.
        weight: ``(out_features, in_features)`` with any strides, or prepacked by ``_prepacked``.
        bias: ``(out_features,)`` or ``None``.

    Returns:
        ``(..., out_features)``.
    """
    out: Tensor = _onednn_linear(x, weight, bias, "none", [], "")
    return out


_PREPACKED_FOR = 160
"""The number of input rows that weights are prepacked for; such a layout is fast for fewer rows as well."""


def _prepacked(matrix: Tensor) -> Any:
    return torch.ops.mkldnn._reorder_linear_weight.default(matrix.contiguous(), _PREPACKED_FOR)


_PADDED_ROWS = 5


def _padded_product(weight: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply one row as the first of five; alone, it is slower on some processors, as each sum waits for the last."""
    padded = F.pad(x.reshape(1, -1), (0, 0, 0, _PADDED_ROWS - 1))
    return onednn_product(padded, weight, bias)[:1].view(*x.shape[:-1], -1)


def _widened_product(matrix: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply in float32, for processors without fast instructions for the dtype of ``x``."""
    return onednn_product(x.float(), matrix.float(), None if bias is None else bias.float()).to(x.dtype)


PLAIN = Kernel("plain", lambda matrix: matrix, lambda matrix, x, bias: F.linear(x, matrix, bias))
# For several rows, it is fast with a matrix in a cache, as in a measurement, but slow with one from memory.
TRANSPOSED = Kernel(
    "transposed", lambda matrix: matrix.t().contiguous().t(), PLAIN.multiply, lambda rows, outputs: rows == 1
)
PREPACKED = Kernel("prepacked", _prepacked, lambda weight, x, bias: _onednn_linear(x, weight, bias, "none", [], ""))
PADDED = Kernel("padded", _prepacked, _padded_product, lambda rows, outputs: rows == 1)
WIDENED = PLAIN._replace(name="float32", multiply=_widened_product)


_SMALLEST = 1e-30
"""The smallest range that values are quantized by, so that nothing is divided by 0."""

_AT_ONCE = 1024
"""Rows of a matrix that are quantized at a time, so that little memory is needed besides the result."""


def quantized(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a matrix to integers from -127 to 127, with one scale for each output.

    Args:
        matrix: ``(out_features, in_features)``.

    Returns:
        The integers, in the matrix' shape, and the scales ``(out_features,)``.
    """
    scales = torch.cat([largest(rows) for rows in matrix.split(_AT_ONCE)]) / 127
    integers = torch.empty(matrix.shape, dtype=torch.int8)
    for rows, rounded, scale in zip(*(tensor.split(_AT_ONCE) for tensor in (matrix, integers, scales)), strict=True):
        rounded.copy_((rows / scale).round_())
    return integers, scales.flatten()


def largest(rows: Tensor) -> Tensor:
    """The largest absolute value of each row of ``(..., C)``, at least ``_SMALLEST``: ``(..., 1)``."""
    return rows.abs().amax(-1, keepdim=True).clamp_(min=_SMALLEST)  # the norm of PyTorch is many times slower


# The kernels below take unsigned inputs. Each row has a scale of its own, since one for the whole input would make each
# row depend on the others: the integers -127 to 127 of a row are stored as 1 to 255, with zero point 128.
_ZERO = 128


def _onednn_integers(matrix: Tensor) -> tuple[Any, Tensor, Tensor]:
    """The integers in oneDNN's layout, and scale and zero point of each output."""
    integers, scales = quantized(matrix)
    packed = torch.ops.onednn.qlinear_prepack.default(integers, None)
    return packed, scales, torch.zeros(len(scales), dtype=torch.int32)


def _onednn_int8(weight: tuple[Any, Tensor, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by oneDNN, whose operator takes rows that are quantized already."""
    packed, scales, zeros = weight
    rows = x.reshape(-1, x.size(-1))
    scale = largest(rows)
    middle = torch.full((), _ZERO + 0.5)  # truncation then rounds to the nearest integer
    unsigned = torch.addcmul(middle, rows, scale.reciprocal(), value=127).to(torch.uint8)
    out: Tensor = torch.ops.onednn.qlinear_pointwise.default(
        unsigned, 1 / 127, _ZERO, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    out.mul_(scale)
    return (out if bias is None else out.add_(bias)).view(*x.shape[:-1], len(scales))


def _fbgemm_integers(matrix: Tensor) -> Any:
    integers, scales = quantized(matrix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # dtypes of quantized tensors are deprecated
        tensor = torch._make_per_channel_quantized_tensor(
            integers, scales.double(), torch.zeros(len(scales), dtype=torch.int64), 0
        )
        return torch.ops.quantized.linear_prepack.default(tensor, None)


def _fbgemm_int8(packed: Any, x: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by FBGEMM, whose operator quantizes its input by one scale: several rows are first divided by theirs."""
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
    if x.numel() == x.size(-1):
        lowest, highest = torch.aminmax(x)
        out: Tensor = multiply(x, max(-lowest.item(), highest.item(), _SMALLEST) / 127, _ZERO, packed)
        return out if bias is None else out.add_(bias)
    scale = largest(x)
    out = multiply(x / scale, 1 / 127, _ZERO, packed)
    return out.mul_(scale) if bias is None else torch.addcmul(bias, out, scale)


_LARGEST_BUFFER = 2**16
"""Maximum number of sums that FBGEMM stores for the measured number of rows. Five rows by a matrix of 32,128 outputs
take 1.8 ms by FBGEMM on a Xeon with AMX, 0.9 by oneDNN, and 2.1 and 2.0 with VNNI only.
"""

ONEDNN_INT8 = Kernel("oneDNN int8", _onednn_integers, _onednn_int8)
# FBGEMM stores the sums in 32 bits before it scales them, which takes long if they do not fit into a cache.
FBGEMM_INT8 = Kernel(
    "FBGEMM int8", _fbgemm_integers, _fbgemm_int8, lambda rows, outputs: rows * outputs <= _LARGEST_BUFFER
)


def kernels_for(dtype: torch.dtype, int8: bool = False) -> Sequence[Kernel]:
    """The kernels that this processor has, with the one first that is used without measurement.

    Args:
        dtype: dtype of the matrix and of the rows.
        int8: whether to multiply in 8-bit integers.
    """
    if int8:
        has_fbgemm = "x86" in torch.backends.quantized.supported_engines
        return (ONEDNN_INT8, FBGEMM_INT8) if has_fbgemm else (ONEDNN_INT8,)
    if dtype == torch.float32 and has_onednn():
        return PREPACKED, PADDED, PLAIN, TRANSPOSED
    if dtype == torch.bfloat16 and has_onednn():
        return (PREPACKED,) * bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) + (PLAIN, WIDENED)
    return (PLAIN,)
