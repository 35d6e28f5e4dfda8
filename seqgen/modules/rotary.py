"""Rotary positions (Su et al. 2021, "RoFormer")."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqgen.modules.masks import QueryPositions


class Rotation(NamedTuple):
    """Rotates queries and keys by their positions; see ``RotaryPositions``.

    Attributes:
        cos: ``(1 or N, T, 1, D)`` cosines of the angles.
        sin: ``(1 or N, T, 1, D)`` sines, negative in the first half of the dimensions.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate ``x``, ``(N, T, H, D)``: dimensions ``i`` and ``i + D/2`` are the coordinates of one plane."""
        first, second = x.chunk(2, dim=-1)
        return torch.addcmul(x * self.cos, torch.cat([second, first], dim=-1), self.sin).to(x.dtype)


class RotaryPositions(nn.Module):
    """Rotary positions: the score of a query and a key depends only on their distance.

    Plane ``i`` of a query or key at position ``p`` is rotated by the angle ``p * base ** (-2i / D)``. One module serves
    all layers. It has no weights and no limit on positions::

        rotation = self.positions(queries, x)
        x, _ = layer.self_attn(x, attn_mask=mask, rotation=rotation, incremental_state=incremental_state)

    Args:
        head_dim: dimension of an attention head, even.
        base: base of the frequencies.
        factor: positions are divided by it (Chen et al. 2023, "Extending context window by positional interpolation").

    Raises:
        ValueError: ``head_dim`` is odd.
    """

    def __init__(self, head_dim: int, base: float = 10000.0, factor: float = 1.0):
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, not {head_dim}")
        self.head_dim = head_dim
        self.base = base
        self.factor = factor

    def forward(self, queries: QueryPositions, like: Tensor) -> Rotation:
        """The rotation of the new positions.

        Args:
            queries: the positions.
            like: a tensor of the wanted dtype; the angles are computed in float32.

        Returns:
            The rotation of ``(N, T, H, head_dim)``.
        """
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=queries.device) / self.head_dim
        angles = queries.positions.unsqueeze(-1).float() * (1.0 / self.base**exponents / self.factor)
        cos, sin = (table.to(like.dtype).unsqueeze(2) for table in (angles.cos(), angles.sin()))
        return Rotation(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))

    def extra_repr(self) -> str:
        """The sizes, for ``print(model)``."""
        return f"{self.head_dim}, base={self.base}"
