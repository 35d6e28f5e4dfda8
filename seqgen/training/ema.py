"""An exponential moving average of the weights, which decodes better than the weights of any one update."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class EMA(Generic[M]):
    """A copy of a model whose weights follow those of the model (Polyak & Juditsky 1992).

    After update ``u`` (from 1) each weight is ``d * average + (1 - d) * weight`` with ``d = min(decay, u / (u + 9))``,
    so that the almost random weights of the first updates soon have little influence.

    Args:
        model: the model that is trained.
        decay: the decay once the first updates are over.

    Attributes:
        model: the copy; nothing is shared with the model that is trained.
    """

    def __init__(self, model: M, decay: float):
        self.decay = decay
        self.model: M = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: M, update: int) -> None:
        """Update the average.

        Args:
            model: the model, after the update.
            update: number of the update, from 1.
        """
        weight = 1.0 - min(self.decay, update / (update + 9))
        averages, values = _tensors(self.model), _tensors(model)
        floating = [i for i, value in enumerate(values) if value.is_floating_point()]
        torch._foreach_lerp_([averages[i] for i in floating], [values[i] for i in floating], weight)
        for i in set(range(len(values))).difference(floating):
            averages[i].copy_(values[i])


def _tensors(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers, each once."""
    return [*model.parameters(), *model.buffers()]
