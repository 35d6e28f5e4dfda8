"""A causal convolution that can go on one position at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.incremental_state import StateDict, StatefulModule
from seqgen.modules.conv_tbc import ConvTBC


class LinearizedConvolution(StatefulModule, ConvTBC):
    """A convolution over the current position and the ``kernel_width - 1`` before it.

    Without a state it is one parallel pass. With one it remembers the inputs that later positions will see, so that a
    new position costs one linear layer: the linearized weight is the kernel laid out as
    ``(kernel_width * in_channels, out_channels)``, computed once per evaluation (see ``CachedWeight``).

    Slots:
        input_buffer: ``(N, kernel_width - 1, in_channels)``, the last inputs, zeros where there were none.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_width: positions that one output sees, its own included.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_width: int):
        super().__init__(in_channels, out_channels, kernel_width, padding=(kernel_width - 1, 0))

    def forward(self, x: Tensor, incremental_state: StateDict | None = None) -> Tensor:
        """Convolve.

        Args:
            x: ``(N, T, in_channels)``; with a state, the new positions only, one or more.
            incremental_state: what was seen before.

        Returns:
            ``(N, T, out_channels)``.
        """
        if incremental_state is None:
            return super().forward(x)
        return self.convolve(self._append(x, incremental_state))

    def _append(self, x: Tensor, incremental_state: StateDict) -> Tensor:
        """Put the inputs seen before in front of ``x`` and remember the last: ``(N, kernel_width - 1 + T, C)``."""
        history = self.kernel_width - 1
        if history == 0:
            return x
        slots = self.get_slots(incremental_state)
        if slots is None:
            inputs = F.pad(x, (0, 0, history, 0))
        else:
            inputs = torch.cat([slots["input_buffer"], x], dim=1)
        self.set_slots(incremental_state, {"input_buffer": inputs[:, inputs.size(1) - history :]})
        return inputs
