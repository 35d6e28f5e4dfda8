"""The mode in which functions of PyTorch are replaced by exact ones, in any model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from seqgen.errors import ConfigError
from seqgen.modules.bit_exact import functions, products


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    if b.dim() == 2:
        kind = ("matmul", b.shape, b.stride(-1) == 1)
        return products.weight_product(lambda rows: torch.matmul(rows, b), kind, a)
    return products.matmul(a, b) if a.dim() > 1 and b.dim() > 1 else _unbatched(a, b)


def _unbatched(a: Tensor, b: Tensor) -> Tensor:
    """Products with a vector."""
    if a.dim() == 1:
        return products.matmul(a.unsqueeze(0), b.unsqueeze(-1) if b.dim() == 1 else b).squeeze(-2)
    return products.matmul(a, b.unsqueeze(-1)).squeeze(-1)


def _prepacked(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    """The product with a weight in oneDNN's layout."""
    multiply = torch.ops.mkldnn._linear_pointwise.default
    kind = ("packed", weight.shape, weight.is_mkldnn, bias is None)
    return products.weight_product(lambda rows: multiply(rows, weight, bias, *rest), kind, x)


def _addmm(added: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = _matmul(a, b)
    return added * beta + product * alpha if (beta, alpha) != (1, 1) else added + product


REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: products.linear,
    torch.ops.mkldnn._linear_pointwise.default: _prepacked,
    **dict.fromkeys((torch.matmul, Tensor.matmul, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm), _matmul),
    **dict.fromkeys((Tensor.__matmul__, torch.mv, Tensor.mv), _matmul),
    **dict.fromkeys((torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm), _addmm),
    F.scaled_dot_product_attention: functions.attention,
    **dict.fromkeys((torch.sigmoid, Tensor.sigmoid, F.sigmoid), functions.sigmoid),
    **dict.fromkeys((torch.logaddexp, Tensor.logaddexp), functions.logaddexp),
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__, torch.float_power), functions.power),
    Tensor.__rpow__: lambda exponent, base: functions.power(base, exponent),
    F.silu: functions.silu,
    F.glu: functions.glu,
    F.gelu: functions.gelu,
    F.elu: functions.elu,
    F.softplus: functions.softplus,
    torch._weight_norm: functions.weight_norm,
    torch.lstm: functions.lstm,
    torch.lstm_cell: functions.lstm_cell,
}
"""The functions whose results depend on the batch, and what replaces them."""

REFUSED: frozenset[Any] = frozenset(
    {
        *(torch.gru, torch.gru_cell, torch.rnn_tanh, torch.rnn_relu, torch.rnn_tanh_cell, torch.rnn_relu_cell),
        *(F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d, torch.conv_tbc, torch.convolution),
        *(F.conv_transpose1d, torch.einsum, torch.tensordot, torch.cdist, F.bilinear, torch.addbmm, torch.chain_matmul),
        *(F.mish, F.selu, torch.exp2, torch.sinh, torch.cosh, torch.atan2, Tensor.sigmoid_, Tensor.pow_),
        *(F.multi_head_attention_forward, torch._native_multi_head_attention, torch._transformer_encoder_layer_fwd),
    }
)
"""Functions whose results depend on the batch and that have no replacement."""


class BitExact(TorchFunctionMode):
    """In the ``with`` block, each row of a result has the same bits whatever the other rows are.

    Raises:
        ConfigError: a model calls a function that is in ``REFUSED``.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function or what replaces it."""
        replacement = REPLACED.get(func)
        if replacement is not None:
            return replacement(*args, **(kwargs or {}))
        if func in REFUSED:
            raise ConfigError(
                f"generation.bit_exact=true: the model calls {getattr(func, '__name__', func)}, whose last bits depend "
                "on the batch, and which has no exact form; use functions of seqgen.modules.bit_exact.mode.REPLACED in "
                "the model, such as linear and matmul, or leave bit_exact out"
            )
        return func(*args) if kwargs is None else func(*args, **kwargs)
