"""A causal convolution that can go on one position at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.errors import DecodingError
from seqgen.incremental_state import Slots, StateDict, StatefulModule
from seqgen.modules.conv_tbc import ConvTBC


class LinearizedConvolution(StatefulModule, ConvTBC):
    """A convolution over the current position and the ``kernel_width - 1`` before it.

    Without a state it is one parallel pass. With one it remembers the inputs that later positions will see, so that a
    new position costs one linear layer: the linearized weight is the kernel laid out as
    ``(kernel_width * in_channels, out_channels)``, computed once per evaluation (see ``CachedWeight``).

    The inputs are put together anew at each step, in the order in which the weight wants them. Writing them in a ring
    would save less than it costs: that copy is 4 % of a step with one sentence and 1 % with 16.

    Slots:
        input_buffer: ``(N, kernel_width - 1, in_channels)``, the last inputs, zeros where there were none; as many more
            as ``IncrementalState.max_truncation`` says.

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
        kept = history + getattr(incremental_state, "max_truncation", 0)
        slots = self.get_slots(incremental_state)
        if slots is None:
            inputs = F.pad(x, (0, 0, kept, 0))
        else:
            inputs = torch.cat([slots["input_buffer"], x], dim=1)
        self.set_slots(incremental_state, {"input_buffer": inputs[:, max(inputs.size(1) - kept, 0) :]})
        return inputs[:, inputs.size(1) - x.size(1) - history :]

    def truncate_slots(self, slots: Slots, positions: int) -> Slots:
        """Drop the last inputs; see ``StatefulModule``."""
        length = slots["input_buffer"].size(1) - positions
        if length < self.kernel_width - 1:
            raise DecodingError(
                f"{positions} positions cannot be taken back by a convolution that remembers so few inputs; begin with "
                f"a decoding state whose max_truncation is {positions}"
            )
        return {"input_buffer": slots["input_buffer"][:, :length]}

    def trim_slots(self, slots: Slots, positions: int) -> Slots:
        """Do nothing: only the last inputs are remembered; see ``StatefulModule``."""
        return slots

    def merge_slots(self, slots: Slots, others: Slots) -> Slots:
        """Put the rows of another state behind those of this one; see ``StatefulModule``."""
        buffers = [slots["input_buffer"], others["input_buffer"]]
        length = max(buffer.size(1) for buffer in buffers)
        return {"input_buffer": torch.cat([F.pad(buffer, (0, 0, length - buffer.size(1), 0)) for buffer in buffers])}
