"""LayerDrop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn


class LayerDropList(nn.ModuleList):
    """A list of layers, each skipped in a training step with probability ``p`` (Fan et al. 2020).

    Args:
        p: probability of skipping a layer.
        layers: the layers; the output of each must have the shape of its input.
    """

    def __init__(self, p: float, layers: Iterable[nn.Module] = ()):
        super().__init__(layers)
        self.p = p

    def active(self) -> Iterator[nn.Module]:
        """The layers to run in this pass: all of them, except in training."""
        return (self[index] for index in self.active_indices())

    def active_indices(self) -> list[int]:
        """The indices of the layers to run in this pass."""
        if not self.training or self.p == 0:
            return list(range(len(self)))
        return [index for index, chance in enumerate(torch.rand(len(self)).tolist()) if chance >= self.p]
