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

    def active(self) -> Iterator[tuple[int, nn.Module]]:
        """The layers to run in this pass, each with its index: all of them, except in training."""
        layers = enumerate(self._modules.values())  # as iterating over a ModuleList, without its checks
        if not self.training or self.p == 0:
            return layers
        chances = torch.rand(len(self)).tolist()
        return ((index, layer) for index, layer in layers if chances[index] >= self.p)
