"""Relative position biases: a learned value for each head and distance, added to the scores of attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqgen.system.switches import INPUT_CHOICES


class RelativePositionBias(nn.Module):
    """A bias for each head and bucket of distances (Raffel et al. 2020, section 2.1).

    The distance from a query to a key is the key's position minus the query's. Half of the buckets have one distance
    each. The others have logarithmically growing ranges up to ``max_distance``; all larger distances share the last
    bucket. In bidirectional attention, keys after the query have half of the buckets; otherwise they have the bucket of
    distance 0.

    Args:
        num_heads: number of attention heads.
        num_buckets: number of buckets, even and at least 4.
        max_distance: distance from which all share one bucket; more than half of ``num_buckets``.
        bidirectional: whether queries attend to later keys.
    """

    buckets: Tensor

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int, bidirectional: bool):
        super().__init__()
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        # On the CPU also if the model is built on the meta device.
        distances = torch.arange(-max_distance, max_distance + 1, device="cpu")
        table = relative_position_bucket(distances, num_buckets, max_distance, bidirectional)
        self.register_buffer("buckets", table, persistent=False)

    def forward(self, seen: int, new: int, keys: int) -> Tensor:
        """The bias of new queries.

        With one query seen, two new ones and three keys, the distances of the new ones are ``-1 0 1`` and ``-2 -1 0``.
        These are two windows of ``-2 -1 0 1``, so that the bias of each distance is looked up only once.

        Args:
            seen: position of the first query.
            new: number of queries.
            keys: number of keys, from position 0.

        Returns:
            ``(1, H, new, keys)``.
        """
        device = self.weight.device
        if not INPUT_CHOICES.is_on():  # one lookup for each query and key: exports have no operator for windows
            queries = torch.arange(seen, seen + new, device=device)
            return self._of_distances(torch.arange(keys, device=device) - queries.unsqueeze(1)).unsqueeze(0)
        # (H, new + keys - 1)
        by_distance = self._of_distances(torch.arange(1 - seen - new, keys - seen, device=device))
        windows = by_distance.unfold(1, keys, 1)  # (H, new, keys), the last query first
        return (windows if new == 1 else windows.flip(1)).unsqueeze(0)

    def _of_distances(self, distances: Tensor) -> Tensor:
        """The bias of each distance: ``(H, *distances.shape)``."""
        buckets = self.buckets[distances.clamp(-self.max_distance, self.max_distance) + self.max_distance]
        return F.embedding(buckets, self.weight).movedim(-1, 0)

    def extra_repr(self) -> str:
        """The sizes, for ``print(model)``."""
        return f"num_buckets={self.weight.size(0)}, num_heads={self.weight.size(1)}, max_distance={self.max_distance}"


def relative_position_bucket(distances: Tensor, num_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """The bucket of each distance.

    With 8 buckets and ``max_distance`` 8, distances 0 to -8 have the buckets ``0 1 2 3 4 5 6 7 7``. In bidirectional
    attention they have the buckets ``0 1 2 2 3 3 3 3 3``, and distances 1 to 8 the buckets ``5 6 6 7 7 7 7 7``.

    Args:
        distances: int64 of any shape, positions of keys minus those of queries.
        num_buckets: number of buckets.
        max_distance: distance from which all share one bucket.
        bidirectional: whether positive distances have separate buckets.

    Returns:
        Buckets from 0 to ``num_buckets - 1``, int64 of the same shape.
    """
    if bidirectional:
        num_buckets //= 2
        offset = (distances > 0).long() * num_buckets
        distances = distances.abs()
    else:
        offset = torch.zeros_like(distances)
        distances = (-distances).clamp(min=0)
    exact = num_buckets // 2
    # In float32 and in this order, so that distances at the border of two buckets get the same bucket as in T5.
    logarithm = torch.log(distances.float() / exact) / math.log(max_distance / exact)
    wide = (exact + (logarithm * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return offset + torch.where(distances < exact, distances, wide)
