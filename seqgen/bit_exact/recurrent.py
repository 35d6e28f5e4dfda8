"""The LSTM, with exact products and gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqgen.bit_exact.functions import sigmoid
from seqgen.bit_exact.products import linear

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
