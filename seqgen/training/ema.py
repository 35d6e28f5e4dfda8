"""Exponential moving average of the weights, which often decodes better than the weights of the last update."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

from seqgen.training.parallel import local_tensors

M = TypeVar("M", bound=nn.Module)


class EMA(Generic[M]):
    """A copy of a model whose weights are averages over the updates (Polyak & Juditsky 1992).

    After update ``u`` (from 1), each average becomes ``d * average + (1 - d) * weight`` with
    ``d = min(decay, u / (u + 9))``: the decay is smaller at first, so that the initial weights soon lose influence.

    Args:
        model: the model that is trained.
        decay: the maximum of ``d``.

    Attributes:
        model: the copy with the averages; it shares no tensors with the trained model.
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
        averages, values = local_tensors(self.model), local_tensors(model)
        floating = [i for i, value in enumerate(values) if value.is_floating_point()]
        torch._foreach_lerp_([averages[i] for i in floating], [values[i] for i in floating], weight)
        for i in set(range(len(values))).difference(floating):
            averages[i].copy_(values[i])
