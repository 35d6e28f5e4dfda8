"""Bit-exact decoding: the numbers of a sentence do not depend on the other sentences of its batch.

In the mode ``BitExact``, functions of PyTorch are replaced by exact ones, in any model. There are two kinds.

Matrix products: each row of the result depends only on its own row of the input, bit by bit.
A matrix library chooses a kernel by the shapes of the matrices, and kernels add in different orders: the product of
five rows can differ in its last bits from the first five rows of a product of eighty. Here a product is defined by
tiles of fixed shape, and computed in one call where that gives the same bits. Whether it does is found out once for
each shape, by computing both; where they differ, the tiles are used.
A tile has 16 rows of the left matrix, 16 columns of the right one, and 128 inner elements. Fewer are filled up with
zeros, which changes no sum. Parts of 128 inner elements are added from left to right.

Functions of single elements and of rows: the result does not depend on the place of an element in memory.
PyTorch computes most elements of a tensor in vectors, and the last few, and those where the work of two threads meets,
one by one. For some functions the two ways give different last bits. The functions here are composed of those that give
the same bits: arithmetic, ``exp``, ``log``, ``log1p`` and ``tanh``. The LSTM is here too, because its gates are such
functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from seqgen.extend import ConfigError

TILE = 16
"""Rows, or columns, of a tile; a multiple of the number of float32 values in a processor's vector."""

INNER = 128
"""Inner elements of a tile: the number that the libraries add one after the other."""

_ROWS = 512
"""Rows of a weight's product that are computed in one call, so that there are few shapes."""

_FEWEST, _WIDE = 4, 12
"""With fewer rows, or fewer columns, libraries add the elements of an inner product in several sums."""

Product: TypeAlias = Callable[[Tensor], Tensor]

_agree: dict[object, bool] = {}
"""For each shape, whether one call gives the bits of the tiles."""


def rounded_up(length: int, step: int) -> int:
    """The smallest multiple of ``step`` that is at least ``length``."""
    return -(-length // step) * step


def weight_product(product: Product, kind: object, x: Tensor) -> Tensor:
    """The product with a weight, with the bits of tiles of 16 rows.

    Args:
        product: maps ``(N, in)`` to ``(N, out)``.
        kind: identifies the kernel that computes it, such as its function and the shape of the weight.
        x: ``(..., in)``.

    Returns:
        ``(..., out)``.
    """
    rows = x.reshape(-1, x.size(-1))
    count = rows.size(0)
    if count % TILE:
        rows = F.pad(rows, (0, 0, 0, rounded_up(count, TILE) - count))
    parts = [_rows_product(product, kind, part) for part in rows.split(_ROWS)] if len(rows) else [product(rows)]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out[:count].view(*x.shape[:-1], out.size(-1))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` with the bits of tiles; few outputs are filled up to a tile, see ``_WIDE``."""
    if (outputs := len(weight)) < _WIDE:
        missing = TILE - outputs
        filled = None if bias is None else F.pad(bias, (0, missing))
        return linear(x, F.pad(weight, (0, 0, 0, missing)), filled)[..., :outputs]
    kind = ("linear", weight.shape, weight.stride(-1) == 1, bias is None)
    return weight_product(lambda rows: F.linear(rows, weight, bias), kind, x)


def _rows_product(product: Product, kind: object, rows: Tensor) -> Tensor:
    def tiled(rows: Tensor) -> Tensor:
        return torch.cat([product(tile) for tile in rows.split(TILE)])

    shape = (kind, rows.shape, rows.dtype, rows.device, torch.get_num_threads())
    return product(rows) if _agrees(shape, product, tiled, rows) else tiled(rows)


def _agrees(shape: object, product: Product, tiled: Product, like: Tensor) -> bool:
    """Whether a product of this shape has the bits of the tiles.

    It is tried with random numbers: where most of the input is zero, different orders of summation give equal sums.
    """
    found = _agree.get(shape)
    if found is None:
        generator = torch.Generator(like.device).manual_seed(1)
        tried = torch.empty_like(like).uniform_(-1, 1, generator=generator)
        found = _agree[shape] = torch.equal(product(tried), tiled(tried))
    return found


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul`` of batches of matrices, with the bits of the tiles.

    Up to 16 rows of ``a`` are not divided: queries of one step, whose number is the same in every batch.

    Args:
        a: ``(..., M, K)``.
        b: ``(..., K, N)``.

    Returns:
        ``(..., M, N)``.
    """
    total: Tensor | None = None
    for begin in range(0, a.size(-1), INNER):
        part = _all_rows(a[..., begin : begin + INNER], b[..., begin : begin + INNER, :])
        total = part if total is None else total.add_(part)
    return torch.matmul(a, b) if total is None else total


def _all_rows(a: Tensor, b: Tensor) -> Tensor:
    rows = a.size(-2)
    wanted = max(rows, _FEWEST) if rows <= TILE else rounded_up(rows, TILE)
    if wanted == rows:
        return _all_columns(a, b)
    return _all_columns(F.pad(a, (0, 0, 0, wanted - rows)), b)[..., :rows, :]


def _all_columns(a: Tensor, b: Tensor) -> Tensor:
    """Columns after the last whole tile are computed in a tile with those before them, or filled up to a tile."""
    columns, rest = b.size(-1), b.size(-1) % TILE
    if rest == 0 or rest >= _WIDE:
        return _whole_tiles(a, b)
    last = b[..., columns - TILE :] if columns >= TILE else F.pad(b, (0, TILE - columns))
    if columns < TILE:
        return _whole_tiles(a, last)[..., :columns]
    return torch.cat([_whole_tiles(a, b[..., : columns - rest]), _whole_tiles(a, last)[..., TILE - rest :]], dim=-1)


def _whole_tiles(a: Tensor, b: Tensor) -> Tensor:
    few = _matrices(b) < 2 * torch.get_num_threads()
    shape = (a.shape[-2:], b.shape[-2:], b.stride(-1) == 1, few, a.dtype, a.device, torch.get_num_threads())
    if _agrees(shape, lambda tried: _many(tried, b), lambda tried: _tiles(tried, b), a):
        return _many(a, b)
    return _tiles(a, b)


def _matrices(b: Tensor) -> int:
    return b.numel() // max(b.size(-1) * b.size(-2), 1)


def _many(a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul``; few matrices are repeated, since with fewer than threads, threads divide each of them."""
    repeats = rounded_up(2 * torch.get_num_threads(), max(_matrices(b), 1)) // max(_matrices(b), 1)
    if repeats <= 1:
        return torch.matmul(a, b)
    dims = max(a.dim(), b.dim())
    copies = [one.expand(repeats, *[1] * (dims - one.dim()), *one.shape).contiguous() for one in (a, b)]
    return torch.matmul(*copies)[0]


def _tiles(a: Tensor, b: Tensor) -> Tensor:
    missing = INNER - a.size(-1)
    a, b = F.pad(a, (0, missing)), F.pad(b, (0, 0, 0, missing))
    return torch.cat([torch.cat(list(_tiles_of(rows, b)), dim=-1) for rows in a.split(TILE, dim=-2)], dim=-2)


def _tiles_of(rows: Tensor, b: Tensor) -> Iterator[Tensor]:
    for columns in b.split(TILE, dim=-1):  # the last one may have 12 to 15 columns
        yield _many(rows.contiguous(), columns.contiguous())


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return (1 + (-x).exp()).reciprocal()


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    """``x * sigmoid(x)``."""
    return x * sigmoid(x)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """``a * sigmoid(b)`` for the two halves of ``x``."""
    a, b = x.chunk(2, dim)
    return a * sigmoid(b)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * x)) / beta``."""
    scaled = x * beta
    return torch.where(scaled > threshold, x, ((-scaled.abs()).exp().log1p() + scaled.clamp(min=0)) / beta)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Hendrycks and Gimpel (2016); ``tanh`` is their approximation."""
    if approximate == "none":
        return F.gelu(x)
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (inner.tanh() + 1)


def elu(x: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``alpha * (exp(x) - 1)`` below zero."""
    return torch.where(x > 0, x, alpha * x.expm1())


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """``log(exp(x) + exp(y))``."""
    larger = torch.maximum(x, y)
    smaller = torch.minimum(x, y)
    difference = torch.where(smaller == larger, 0.0, smaller - larger)  # two infinities have no difference
    return larger + difference.exp().log1p()


def power(x: Any, exponent: Any) -> Tensor:
    """``x ** exponent``; an exponent that is a small integer, or a half of one, is already exact."""
    if isinstance(exponent, int | float) and exponent * 2 in (-4, -2, -1, 0, 1, 2, 4, 6):
        return torch.pow(x, exponent)
    wide = torch.as_tensor(x, dtype=torch.float64)
    exponents = exponent.double() if isinstance(exponent, Tensor) else exponent
    found = torch.where(wide > 0, (wide.log() * exponents).exp(), torch.pow(wide, exponents))
    return found.to(torch.result_type(x, exponent))


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """``g * v / |v|``, with a norm for each index of dimension ``dim`` (Salimans and Kingma 2016)."""
    others = [other for other in range(v.dim()) if other != dim]
    return v * (g / (v * v).sum(others, keepdim=True).sqrt())


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``scaled_dot_product_attention`` as two products and a softmax, for evaluation."""
    if enable_gqa:
        repeats = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = matmul(query * (query.size(-1) ** -0.5 if scale is None else scale), key.transpose(-1, -2))
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return matmul(scores.softmax(-1), value)


def lstm_cell(x: Tensor, state: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, *biases: Any) -> tuple[Tensor, Tensor]:
    """``torch.lstm_cell``: one step of Hochreiter and Schmidhuber (1997) with a forget gate.

    Args:
        x: ``(N, in)``.
        state: the hidden and the cell state, ``(N, C)`` each.
        w_ih: ``(4 * C, in)``, for the input, forget, cell and output gates.
        w_hh: ``(4 * C, C)``, likewise.
        biases: ``(4 * C,)`` each, for ``x`` and for the hidden state; ``None`` or left out if there are none.

    Returns:
        The new state.
    """
    b_ih, b_hh = biases or (None, None)
    gates = linear(x, w_ih, b_ih) + linear(state[0], w_hh, b_hh)
    enter, forget, new, leave = gates.chunk(4, -1)
    cell = sigmoid(forget) * state[1] + sigmoid(enter) * new.tanh()
    return sigmoid(leave) * cell.tanh(), cell


def lstm(data: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """``torch.lstm``: all layers and directions over padded or packed sequences, in evaluation.

    The arguments are those that ``torch.nn.LSTM`` passes: for padded sequences the state, the parameters, whether there
    are biases, the number of layers, dropout, training, whether there are two directions, and whether the batch is the
    first dimension; for packed sequences the number of rows of each step before the state, and no last argument.
    """
    packed = isinstance(arguments[0], Tensor)
    states, parameters, _, layers, _, _, both, *first = arguments[1:] if packed else arguments
    time = 0 if packed or not first[0] else 1
    steps = data.split(arguments[0].tolist()) if packed else data.unbind(time)
    ways = 2 if both else 1
    each, finals = len(parameters) // (layers * ways), list[list[Tensor]]()
    for layer in range(layers):
        outputs = []
        for number in range(layer * ways, (layer + 1) * ways):
            weights, state = parameters[number * each : (number + 1) * each], [part[number].clone() for part in states]
            outputs.append(_one_direction(steps, state, weights, backwards=number % ways == 1))
            finals.append(state)
        steps = [torch.cat(both_ways, -1) for both_ways in zip(*outputs, strict=True)]
    hidden, cells = (torch.stack(part) for part in zip(*finals, strict=True))
    return torch.cat(steps) if packed else torch.stack(steps, time), hidden, cells


def _one_direction(
    steps: Sequence[Tensor], state: list[Tensor], weights: Sequence[Tensor], backwards: bool
) -> list[Tensor]:
    """Run over the steps, and update the state; of packed sequences, sorted by length, later steps have fewer rows."""
    outputs = []
    for step in reversed(steps) if backwards else steps:
        new = lstm_cell(step, [part[: len(step)] for part in state], *weights)
        for part, value in zip(state, new, strict=True):
            part[: len(step)] = value
        outputs.append(new[0])
    return outputs[::-1] if backwards else outputs


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    if b.dim() == 2 and (columns := b.size(1)) < _WIDE:
        return _matmul(a, F.pad(b, (0, TILE - columns)))[..., :columns]
    if b.dim() == 2:
        kind = ("matmul", b.shape, b.stride(-1) == 1)
        return weight_product(lambda rows: torch.matmul(rows, b), kind, a)
    return matmul(a, b) if a.dim() > 1 and b.dim() > 1 else _unbatched(a, b)


def _unbatched(a: Tensor, b: Tensor) -> Tensor:
    """Products with a vector."""
    if a.dim() == 1:
        return matmul(a.unsqueeze(0), b).squeeze(-2) if b.dim() > 1 else _unbatched(a.unsqueeze(0), b).squeeze(0)
    return matmul(a, b.unsqueeze(-1)).squeeze(-1)


def _prepacked(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    """The product with a weight in oneDNN's layout."""
    multiply = torch.ops.mkldnn._linear_pointwise.default
    kind = ("packed", weight.shape, weight.is_mkldnn, bias is None)
    return weight_product(lambda rows: multiply(rows, weight, bias, *rest), kind, x)


def _addmm(added: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = _matmul(a, b)
    return added * beta + product * alpha if (beta, alpha) != (1, 1) else added + product


REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: linear,
    torch.ops.mkldnn._linear_pointwise.default: _prepacked,
    **dict.fromkeys((torch.matmul, Tensor.matmul, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm), _matmul),
    **dict.fromkeys((Tensor.__matmul__, torch.mv, Tensor.mv), _matmul),
    **dict.fromkeys((torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm), _addmm),
    F.scaled_dot_product_attention: attention,
    **dict.fromkeys((torch.sigmoid, Tensor.sigmoid, F.sigmoid), sigmoid),
    **dict.fromkeys((torch.logaddexp, Tensor.logaddexp), logaddexp),
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__, torch.float_power), power),
    Tensor.__rpow__: lambda exponent, base: power(base, exponent),
    F.silu: silu,
    F.glu: glu,
    F.gelu: gelu,
    F.elu: elu,
    F.softplus: softplus,
    torch._weight_norm: weight_norm,
    torch.lstm: lstm,
    torch.lstm_cell: lstm_cell,
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
                "on the batch, and which has no exact form; use functions of REPLACED (addons/bit_exact/functions.py), "
                "such as linear and matmul, in the model, or remove the key"
            )
        return func(*args) if kwargs is None else func(*args, **kwargs)
