"""Segments: several examples in one row, which must not attend to each other.

The segment of a token is the number of its example in the row: 1, 2, ... from left to right, and 0 at padding::

    tokens      a b . c d e . _        segments    1 1 1 2 2 2 2 0
"""

from __future__ import annotations

import torch
from torch import Tensor


def segment_mask(queries: Tensor, keys: Tensor, causal: bool = False) -> Tensor:
    """The mask with which each query attends only to keys of its own example.

    Args:
        queries: ``(N, Q)`` int64 segments.
        keys: ``(N, K)`` int64 segments.
        causal: whether a query attends only to keys up to its own position.

    Returns:
        ``(N, 1, Q, K)`` bool, true where attention is allowed.
    """
    allowed = queries.unsqueeze(2) == keys.unsqueeze(1)
    if causal:
        allowed = allowed.tril()
    return allowed.unsqueeze(1)


def segment_positions(segments: Tensor) -> Tensor:
    """The position of each token within its example.

    Args:
        segments: ``(N, L)`` int64.

    Returns:
        ``(N, L)`` int64: ``1 1 1 2 2 2 2 0`` gives ``0 1 2 0 1 2 3 0``.
    """
    positions = torch.arange(segments.size(1), device=segments.device).expand_as(segments)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    first = torch.where(begins, positions, 0).cummax(1).values
    return positions - first
