"""Functions of single elements and of rows, whose results do not depend on the place of an element in memory.

PyTorch computes most elements of a tensor in vectors, and the last few, and those where the work of two threads meets,
one by one. For some functions the two ways give different last bits. The functions here are composed of those that give
the same bits: arithmetic, ``exp``, ``log``, ``log1p`` and ``tanh``.

The LSTM is here too, because its gates are such functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.modules.bit_exact.products import linear, matmul


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


State = tuple[Tensor, Tensor]
"""The hidden and the cell state, ``(N, C)`` each."""


def lstm_cell(
    x: Tensor,
    state: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> State:
    """``torch.lstm_cell``: one step of Hochreiter and Schmidhuber (1997) with a forget gate.

    Args:
        x: ``(N, in)``.
        state: hidden and cell state.
        w_ih: ``(4 * C, in)``, for the input, forget, cell and output gates.
        w_hh: ``(4 * C, C)``, likewise.
        b_ih: ``(4 * C,)``.
        b_hh: ``(4 * C,)``.

    Returns:
        The new state.
    """
    return _step(linear(x, w_ih, b_ih), (state[0], state[1]), w_hh, b_hh)


def _step(inputs: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None) -> State:
    gates = inputs + linear(state[0], w_hh, b_hh)
    enter, forget, new, leave = gates.chunk(4, -1)
    cell = sigmoid(forget) * state[1] + sigmoid(enter) * new.tanh()
    return sigmoid(leave) * cell.tanh(), cell


def lstm(data: Tensor, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    """``torch.lstm``: all layers and directions over padded or packed sequences, in evaluation.

    The arguments are those that ``torch.nn.LSTM`` passes: for padded sequences the state, the parameters, whether there
    are biases, the number of layers, dropout, training, whether there are two directions, and whether the batch is the
    first dimension; for packed sequences the number of rows of each step before the state, and no last argument.
    """
    packed = isinstance(arguments[0], Tensor)
    sizes, (states, parameters, has_bias, layers, _, _, both, *first) = (
        (arguments[0].tolist(), arguments[1:]) if packed else (None, arguments)
    )
    x = data if packed or not first[0] else data.transpose(0, 1)
    steps = list(x.split(sizes)) if sizes is not None else list(x.unbind(0))
    each = len(parameters) // (layers * (2 if both else 1))
    hidden, cells = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(2 if both else 1):
            number = layer * (2 if both else 1) + direction
            own = parameters[number * each : (number + 1) * each]
            w_ih, w_hh, b_ih, b_hh = own if has_bias else (*own, None, None)
            state = (states[0][number], states[1][number])
            out, state = _one_direction(steps, state, (w_ih, w_hh, b_ih, b_hh), backwards=direction == 1)
            outputs.append(out)
            hidden.append(state[0])
            cells.append(state[1])
        steps = [torch.cat(both_ways, -1) for both_ways in zip(*outputs, strict=True)]
    output = torch.cat(steps) if packed else torch.stack(steps, 1 if first[0] else 0)
    return output, torch.stack(hidden), torch.stack(cells)


def _one_direction(
    steps: list[Tensor], state: State, weights: tuple[Tensor, Tensor, Tensor | None, Tensor | None], backwards: bool
) -> tuple[list[Tensor], State]:
    """Run over the steps; of packed sequences, sorted by length, later steps have fewer rows."""
    w_ih, w_hh, b_ih, b_hh = weights
    last = [part.clone() for part in state]
    outputs = []
    for step in reversed(steps) if backwards else steps:
        rows = len(step)
        new = _step(linear(step, w_ih, b_ih), (last[0][:rows], last[1][:rows]), w_hh, b_hh)
        for part, value in zip(last, new, strict=True):
            part[:rows] = value
        outputs.append(new[0])
    return outputs[::-1] if backwards else outputs, (last[0], last[1])
