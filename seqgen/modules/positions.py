"""Positions of tokens: embeddings, biases of relative positions, and rotations (Su et al. 2021, "RoFormer").

Position embeddings have fairseq's numbers: the first token has number ``padding_idx + 1``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqgen.modules.masks import QueryPositions
from seqgen.modules.step_plan import active_plan
from seqgen.system.switches import INPUT_CHOICES

_BLOCK = 64
"""Keys of which the bias of a decoding step is computed at a time."""


class Positions(nn.Module):
    """Position embeddings from a table ``weight`` with one row for each number.

    Tokens are numbered from ``padding_idx + 1``; rows before that are not used.

    Args:
        num_rows: rows of the table.
        embedding_dim: dimension of the embeddings.
        padding_idx: number of padding positions; -1 if the first token has number 0 and padding has no row.
    """

    weight: Tensor

    def __init__(self, num_rows: int, embedding_dim: int, padding_idx: int):
        super().__init__()
        self.num_rows = num_rows
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx

    @property
    def max_positions(self) -> int:
        """The largest number of tokens: 1,022 for a table of 1,024 rows with ``padding_idx`` 1."""
        return self.num_rows - self.padding_idx - 1

    def forward(self, queries: QueryPositions) -> Tensor:
        """The embeddings of some positions; padding on either side is not counted, and each example counts from 0.

        Args:
            queries: the positions.

        Returns:
            ``(1 or N, new, C)``; undefined at padding.

        Raises:
            ValueError: a source or target is longer than ``max_positions``.
        """
        first, end = self.padding_idx + 1, queries.seen + queries.new
        if queries.segments is None and queries.padding_mask is None and queries.start_offsets is None:
            self._check(end, queries)
            return self.weight[first + queries.seen : first + end].unsqueeze(0)
        positions = queries.positions
        if queries.start_offsets is None and end > self.max_positions:
            self._check(int(positions.max()) + 1, queries)
        # With start offsets, positions beyond the table occur only in sentences that are done.
        return F.embedding(positions.clamp(max=self.max_positions - 1) + first, self.weight)

    def _check(self, length: int, queries: QueryPositions) -> None:
        if length > self.max_positions:
            what = "target" if queries.causal else "source"
            raise ValueError(
                f"a {what} of {length} tokens is longer than the {self.max_positions} positions of the model; "
                f"truncate it, or build the model with a larger max_{what}_positions"
            )


class LearnedPositions(Positions):
    """Learned position embeddings.

    Args:
        num_rows: rows of the table, ``padding_idx + 1`` of which are not used for tokens.
        embedding_dim: dimension of the embeddings.
        padding_idx: number of padding positions.
        std: standard deviation of the initial values.
    """

    def __init__(self, num_rows: int, embedding_dim: int, padding_idx: int, std: float):
        super().__init__(num_rows, embedding_dim, padding_idx)
        self.weight = nn.Parameter(torch.empty(num_rows, embedding_dim))
        nn.init.normal_(self.weight, std=std)
        if padding_idx >= 0:
            nn.init.zeros_(self.weight[padding_idx])


SINUSOIDS = ("fairseq", "paper")
"""The tables of sinusoidal positions; see ``SinusoidalPositions``."""


class SinusoidalPositions(Positions):
    """Sinusoidal position embeddings (Vaswani et al. 2017, section 3.5).

    The sines of all frequencies come first and then the cosines. The table is computed and not saved with the weights.

    Args:
        num_rows: rows of the table, ``padding_idx + 1`` of which are not used for tokens.
        embedding_dim: dimension of the embeddings.
        padding_idx: number of padding positions.
        sinusoids: ``fairseq`` for frequencies that decrease geometrically from 1 to 1/10000 in ``C/2 - 1`` steps;
            ``paper`` for those of the paper, ``10000 ** (-2i / C)``, as in Marian and Pegasus.
    """

    def __init__(self, num_rows: int, embedding_dim: int, padding_idx: int, sinusoids: str = "fairseq"):
        super().__init__(num_rows, embedding_dim, padding_idx)
        self.sinusoids = sinusoids
        self.register_buffer("weight", torch.empty(num_rows, embedding_dim), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Compute the table, on its device and in its dtype; on the ``meta`` device nothing is computed."""
        if not self.weight.is_meta:
            self.weight = self._table().to(self.weight)

    def _table(self) -> Tensor:
        if self.sinusoids == "paper":  # in float64, as in Marian; an odd dimension has one sine more than cosines
            exponents = torch.arange(0, self.embedding_dim, 2, dtype=torch.float64) / self.embedding_dim
            angles = torch.arange(self.num_rows, dtype=torch.float64).unsqueeze(1) / 10000**exponents
            return torch.cat([angles.sin(), angles.cos()[:, : self.embedding_dim // 2]], dim=1).float()
        # in float32, as in fairseq, so that models trained there get the same embeddings
        half = self.embedding_dim // 2
        frequencies = torch.exp(torch.arange(half) * -(math.log(10000) / max(half - 1, 1)))
        angles = torch.arange(self.num_rows, dtype=torch.float32).unsqueeze(1) * frequencies
        return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, self.embedding_dim % 2))


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
        plan = active_plan()
        if plan is not None and device.type == "cpu" and new == 1 and keys == seen + 1:
            # the last keys of a longer row, which is kept; not on a GPU, whose attention kernels need aligned masks
            longest = -(-keys // _BLOCK) * _BLOCK
            row = plan.kept((self, longest), lambda: self._last_row(longest))
            return row.narrow(3, longest - keys, keys)
        # (H, new + keys - 1)
        by_distance = self._of_distances(torch.arange(1 - seen - new, keys - seen, device=device))
        windows = by_distance.unfold(1, keys, 1)  # (H, new, keys), the last query first
        return (windows if new == 1 else windows.flip(1)).unsqueeze(0)

    def _last_row(self, keys: int) -> Tensor:
        """The bias of the last of some positions to all of them, ``(1, H, 1, keys)``."""
        distances = torch.arange(1 - keys, 1, device=self.weight.device)
        return self._of_distances(distances).unsqueeze(1).unsqueeze(0).contiguous()

    def _of_distances(self, distances: Tensor) -> Tensor:
        """The bias of each distance: ``(H, *distances.shape)``."""
        buckets = self.buckets[distances.clamp(-self.max_distance, self.max_distance) + self.max_distance]
        return F.embedding(buckets, self.weight).movedim(-1, 0)


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


def token_embedding(num_embeddings: int, embedding_dim: int, padding_idx: int | None, std: float) -> nn.Embedding:
    """A normally distributed embedding whose padding row is zero.

    Args:
        num_embeddings: size of the vocabulary.
        embedding_dim: dimension of the embeddings.
        padding_idx: id of padding; ``None`` if no row is for padding only.
        std: standard deviation of the initial values.

    Returns:
        The embedding, with weight ``(num_embeddings, embedding_dim)``.
    """
    embedding = nn.Embedding(num_embeddings, embedding_dim, padding_idx)
    nn.init.normal_(embedding.weight, std=std)
    if padding_idx is not None:
        nn.init.zeros_(embedding.weight[padding_idx])
    return embedding


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
        angles = queries.positions.unsqueeze(-1).float() * self.frequencies(queries.device)
        cos, sin = (table.to(like.dtype).unsqueeze(2) for table in (angles.cos(), angles.sin()))
        return Rotation(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))

    def frequencies(self, device: torch.device) -> Tensor:
        """The angle of each plane at position 1, ``(head_dim / 2,)``, in float32."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device) / self.head_dim
        return 1.0 / self.base**exponents / self.factor


class HighFrequencyPositions(RotaryPositions):
    """Rotary positions whose high frequencies are not divided by the factor (Llama 3.1).

    With ``n`` the number of periods in ``original`` positions, a frequency is kept if ``n`` is above ``high``, divided
    if ``n`` is below ``low``, and interpolated in between.

    Args:
        head_dim: see ``RotaryPositions``.
        base: see ``RotaryPositions``.
        factor: divisor of the low frequencies.
        original: longest input before the factor was introduced.
        low: periods below which frequencies are divided.
        high: periods above which frequencies are kept.
    """

    def __init__(self, head_dim: int, base: float, factor: float, original: int, low: float, high: float):
        super().__init__(head_dim, base)
        self.divisor, self.original, self.low, self.high = factor, original, low, high

    def frequencies(self, device: torch.device) -> Tensor:
        """See ``RotaryPositions.frequencies``."""
        kept = super().frequencies(device)
        periods = self.original * kept / (2 * math.pi)
        share = ((periods - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - share) * kept / self.divisor + share * kept
