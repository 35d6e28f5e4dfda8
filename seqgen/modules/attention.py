"""Scaled dot-product attention without projections and caches, and that of the convolutional model.

Letters: ``B`` rows of the keys, ``H`` heads, ``G`` heads of the keys, ``Q`` queries, ``K`` keys, ``D`` size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqgen.modules.dropout import Dropout
from seqgen.modules.linear import weight_norm_linear
from seqgen.system.switches import INPUT_CHOICES

_SMALL = 64 * 64
"""Number of scores per head up to which two plain matrix products are faster on a CPU than the fused kernel.

Milliseconds, plain / fused. Forward and backward with 4,000 positions in all and 4 heads of size 32: rows of 20
positions 5 / 12, of 50 positions 13 / 12, of 100 positions 17 / 19, of 400 positions 52 / 33. A decoding step with 16
rows, 8 heads, 5 queries and 32 keys: 0.13 / 0.36.
"""

_COMPILED = (torch.bfloat16, torch.float16)
_ROUNDED = 32
"""Dtypes for which numbers of keys are rounded up on a CPU, and the multiple."""

_FEW = 16
"""Number of queries up to which plain products are faster for any number of keys.

Milliseconds, plain / fused, with 5 queries, 32 rows and 8 heads: 160 keys 3.6 / 7.0, 1,500 keys 65 / 77.
"""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout: Dropout | None = None,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Average the values, weighted by the softmax of scaled scores (Vaswani et al. 2017, equation 1).

    Several successive heads of the queries may share one head of the keys and values: ``G`` divides ``H``.

    Args:
        query: ``(B, H, Q, D)``.
        key: ``(B, G, K, D)``.
        value: ``(B, G, K, D)``.
        mask: broadcastable to ``(B, H, Q, K)``; bool, true where a query may attend, or a float that is added to the
            scores. The output of a query that may attend to nothing is undefined but finite.
        is_causal: whether query ``i`` attends only to keys up to ``i``; ``mask`` must then be ``None``.
        scale: factor of the scores; by default ``D ** -0.5``.
        soft_cap: bound of the scaled scores, see ``soft_capped``; ``None`` for no bound.
        dropout: applied to the weights.
        need_weights: whether to return the weights.

    Returns:
        The averages ``(B, H, Q, D)``, and the weights before dropout, ``(B, H, Q, K)`` or ``None``.
    """
    drops = dropout is not None and dropout.training and dropout.p > 0
    dropout = dropout if drops else None
    queries, keys, grouped = query.size(-2), key.size(-2), query.size(1) != key.size(1)
    plain = need_weights or soft_cap is not None or not INPUT_CHOICES.is_on()
    if not plain and (query.device.type != "cpu" or not (drops or queries <= _FEW or queries * keys <= _SMALL)):
        p = 0.0 if dropout is None else dropout.p
        out = F.scaled_dot_product_attention(
            query, key, value, mask, dropout_p=p, is_causal=is_causal, scale=scale, enable_gqa=grouped
        )
        return out, None
    scale = query.size(-1) ** -0.5 if scale is None else scale
    if is_causal:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
    query = query if scale == 1 else query * scale
    if grouped and torch.compiler.is_compiling():  # the tracer does not support the shapes of groups
        key, value = (x.repeat_interleave(query.size(1) // key.size(1), dim=1) for x in (key, value))
        grouped = False
    if grouped:  # (B, H, Q, D) -> (B, G, H / G * Q, D): the queries of all heads of a group are those of one head
        scores = _scores(_as_groups(query, key.size(1)), key).reshape(*query.shape[:3], -1)
    else:
        scores = _scores(query, key)
    if soft_cap is not None:
        scores = soft_capped(scores, soft_cap)
    scores = scores if mask is None else _masked(scores, mask)
    weights = scores.softmax(-1)
    dropped = weights if dropout is None else dropout(weights)
    if grouped:
        out = torch.matmul(_as_groups(dropped, value.size(1)), value).reshape(*query.shape[:3], -1)
    else:
        out = torch.matmul(dropped, value)
    return out, weights if need_weights else None


class StepMemory(NamedTuple):
    """A memory of keys and values as a decoding step of one position reads it: a matrix for each head of each row.

    Attributes:
        rows: ``B``, rows of the memory; the beams of a sentence may share one.
        keys: ``(B * H, D, K)``.
        written_keys: the same keys, ``(B * H, K, D)``.
        values: ``(B * H, K, D)``.
        zero: ``(1, 1, 1)``.
        source: the keys ``(B, H, K, D)`` of which these are views.
    """

    rows: int
    keys: Tensor
    written_keys: Tensor
    values: Tensor
    zero: Tensor
    source: Tensor

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> Self:
        """Views of a memory ``(B, H, K, D)``."""
        by_head = keys.flatten(0, 1)
        return cls(keys.size(0), by_head.transpose(1, 2), by_head, values.flatten(0, 1), keys.new_zeros(1, 1, 1), keys)

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Write ``(B * H, T, D)`` keys and values from a position on."""
        self.written_keys.narrow(1, start, keys.size(1)).copy_(keys)
        self.values.narrow(1, start, keys.size(1)).copy_(values)

    def first(self, positions: int) -> StepMemory:
        """The first positions."""
        if positions == self.keys.size(2):
            return self
        keys, values = self.keys.narrow(2, 0, positions), self.values.narrow(1, 0, positions)
        return StepMemory(self.rows, keys, self.written_keys, values, self.zero, self.source)

    def attend(self, query: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """Attend without gradients, as ``attend`` does.

        Args:
            query: ``(B * H, Q, D)``.
            mask: broadcastable to ``(B, H, Q, K)``; see ``attend``.
            scale: factor of the scores.

        Returns:
            ``(B * H, Q, D)``.
        """
        heads, few = query.size(0) // self.rows, (1, query.size(0))
        # a product with (B * H, Q, D) can add a mask that has one matrix, or one for each row and head
        adds = mask is not None and mask.dtype == query.dtype != torch.bfloat16 and mask.dim() == 4
        if mask is not None and adds and mask.size(0) * mask.size(1) in few:
            return torch.bmm(torch.baddbmm(mask.flatten(0, 1), query, self.keys, alpha=scale).softmax(-1), self.values)
        if query.dtype == torch.bfloat16:
            scores = _scores(query if scale == 1 else query * scale, self.keys.transpose(1, 2))
        elif scale == 1:
            scores = torch.bmm(query, self.keys)
        else:
            scores = torch.baddbmm(self.zero, query, self.keys, beta=0, alpha=scale)
        if mask is not None:
            scores = _masked(scores.view(self.rows, heads, *scores.shape[1:]), mask).flatten(0, 1)
        return torch.bmm(scores.softmax(-1), self.values)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Mask scores ``(B, H, Q, K)``, in place if possible; see ``attend``."""
    if mask.dtype == torch.bool:
        # The lowest finite number and not -inf: the softmax of a fully masked row must not be NaN.
        return scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return scores.add_(mask) if mask.dtype == scores.dtype else scores + mask


def _as_groups(x: Tensor, groups: int) -> Tensor:
    """Concatenate the queries of all heads of a group: ``(B, H, Q, C)`` to ``(B, G, H / G * Q, C)``."""
    return x.reshape(x.size(0), groups, -1, x.size(-1))


def soft_capped(x: Tensor, bound: float) -> Tensor:
    """Bound values smoothly: ``bound * tanh(x / bound)``, close to ``x`` where it is small (Gemma 2)."""
    return torch.tanh(x / bound) * bound


def _scores(query: Tensor, key: Tensor) -> Tensor:
    """The product of each query with each key, ``(B, H, Q, K)``.

    In bfloat16, a product with few queries is faster with the queries as the second factor, unless the keys have the
    layout of ``empty_keys``: 5 queries and 200 keys in 256 rows take 1.0 ms rather than 2.4.
    """
    if query.dtype == torch.bfloat16 and query.device.type == "cpu" and query.size(-2) <= _FEW and key.stride(-1) == 1:
        return torch.matmul(key, query.transpose(-1, -2)).transpose(-1, -2).contiguous()
    return torch.matmul(query, key.transpose(-1, -2))


def rounded_keys(keys: int, memory: Tensor) -> int:
    """The number of keys of a memory that attention reads, rounded up so that few different numbers occur.

    On a CPU, oneDNN compiles a kernel of about a megabyte for each number of keys in bfloat16 and float16. There, the
    number is rounded up; the keys after the filled ones must be finite, and masked.

    Args:
        keys: number of keys that are filled.
        memory: ``(B, H, capacity, D)`` the memory of keys.

    Returns:
        A number from ``keys`` to the capacity.
    """
    if memory.device.type != "cpu" or memory.dtype not in _COMPILED:
        return keys
    return min(-(-keys // _ROUNDED) * _ROUNDED, memory.size(2))


def empty_keys(like: Tensor, rows: int, heads: int, keys: int, dim: int) -> Tensor:
    """Uninitialized memory for keys.

    On a CPU, the position is the last dimension in memory, which is fastest for few queries. With cold caches, 256
    rows, 5 queries and 200 keys, attention takes 2.6 ms instead of 3.1 in float32, and 1.9 instead of 3.1 in bfloat16.

    Args:
        like: a tensor of the wanted dtype and device.
        rows: number of rows, or of sentences if rows share their keys.
        heads: number of heads.
        keys: number of keys.
        dim: size of a head.

    Returns:
        ``(rows, heads, keys, dim)``.
    """
    if like.device.type != "cpu":
        return like.new_empty(rows, heads, keys, dim)
    return like.new_empty(rows, heads, dim, keys).transpose(2, 3)


def as_keys(x: Tensor) -> Tensor:
    """A copy of keys ``(B, H, K, D)`` in the layout of ``empty_keys``."""
    return empty_keys(x, *x.shape).copy_(x)


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """``x.index_select(0, rows)`` with the memory layout of ``x``."""
    if x.dim() == 4 and x.stride(-1) != 1:
        return x.transpose(-1, -2).index_select(0, rows).transpose(-1, -2)
    return x.index_select(0, rows)


def fold_beams(x: Tensor, key_rows: int) -> Tensor:
    """Put the queries of all beams of a sentence into one row, so that they attend to one copy of its keys.

    Example: a sentence has two beams, rows 0 and 1, each with the queries ``a b``. They become one row with the queries
    ``a0 b0 a1 b1``.

    Args:
        x: ``(rows, Q, H, D)``, sentence-major, where ``rows = r * key_rows``.
        key_rows: rows of the keys.

    Returns:
        ``(key_rows, H, r * Q, D)``.
    """
    rows, length, heads, dim = x.shape
    if rows == key_rows:
        return x.transpose(1, 2)
    if length == 1:  # without a copy
        return x.view(key_rows, -1, heads, dim).transpose(1, 2)
    # (B * r, Q, H, D) -> (B, r, Q, H, D) -> (B, H, r, Q, D) -> (B, H, r * Q, D)
    grouped = x.view(key_rows, -1, length, heads, dim).permute(0, 3, 1, 2, 4)
    return grouped.reshape(key_rows, heads, -1, dim)


def split_heads(x: Tensor, rows: int, parts: int, heads: int) -> Sequence[Tensor]:
    """Split projected features of one position into queries, keys and values with a matrix for each head.

    Args:
        x: ``(N, 1, parts * H * D)``.
        rows: ``B``, rows of the keys; the ``N / B`` beams of a sentence become queries of one row.
        parts: 3 for queries, keys and values; 1 for queries only.
        heads: ``H``.

    Returns:
        ``parts`` times ``(B * H, beam, D)``.
    """
    if rows == 1:  # without a copy
        split = x.view(-1, parts, heads, x.size(2) // (parts * heads)).permute(1, 2, 0, 3)
        return split.unbind(0) if parts > 1 else (split.squeeze(0),)
    split = x.view(rows, -1, parts, heads, x.size(2) // (parts * heads)).permute(2, 0, 3, 1, 4)
    return split.reshape(parts, rows * heads, -1, split.size(4)).unbind(0)


def unfold_weights(weights: Tensor, rows: int) -> Tensor:
    """The attention weights of each row, if queries were folded by ``fold_beams``.

    Args:
        weights: ``(B, H, r * Q, K)``.
        rows: rows of the batch, ``B * r``.

    Returns:
        ``(rows, H, Q, K)``.
    """
    key_rows, heads, queries, keys = weights.shape
    if rows == key_rows:
        return weights
    beams = rows // key_rows
    # (B, H, r * Q, K) -> (B, H, r, Q, K) -> (B, r, H, Q, K)
    grouped = weights.view(key_rows, heads, beams, -1, keys).transpose(1, 2)
    return grouped.reshape(rows, heads, queries // beams, keys)


def unfold_beams(x: Tensor, rows: int) -> Tensor:
    """Undo ``fold_beams`` and concatenate the heads.

    Args:
        x: ``(B, H, r * Q, D)``, the output of attention for folded queries.
        rows: rows of the batch, ``B * r``.

    Returns:
        ``(rows, Q, H * D)``.
    """
    key_rows, heads, queries, dim = x.shape
    if key_rows * queries == rows:  # one query of each beam, without a copy
        return x.transpose(1, 2).reshape(rows, 1, heads * dim)
    return unfold_weights(x, rows).transpose(1, 2).reshape(rows, -1, heads * dim)


class MultiStepAttention(nn.Module):
    """Attention of one decoder layer, with one head and unscaled scores (Gehring et al. 2017).

    The query is the layer's output, projected, plus the embedding of the previous token. The keys are the encoder's
    features; the values are features plus source embeddings.

    Args:
        hidden_size: dimension of the layer's output.
        embed_dim: dimension of the embeddings and of the encoder's output.

    Attributes:
        on_weights: receives the weights of its head, ``(N, 1, T, S)``; see ``MultiheadAttention``.
    """

    encoder_decoder = True

    def __init__(self, hidden_size: int, embed_dim: int):
        super().__init__()
        self.in_projection = weight_norm_linear(hidden_size, embed_dim)
        self.out_projection = weight_norm_linear(embed_dim, hidden_size)
        self.on_weights: Callable[[Tensor], None] | None = None

    def forward(
        self,
        x: Tensor,
        target_embedding: Tensor,
        keys: Tensor,
        values: Tensor,
        padding_mask: Tensor | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend and add the result to the layer's output.

        Args:
            x: ``(N, T, hidden_size)``.
            target_embedding: ``(N, T, embed_dim)``.
            keys: ``(N or sentences, S, embed_dim)``.
            values: ``(N or sentences, S, embed_dim)``.
            padding_mask: ``(N or sentences, S)`` bool, true at padding; ``None`` if there is no padding.
            need_weights: whether to return the weights.

        Returns:
            ``(N, T, hidden_size)``, and the weights, ``(N, T, S)`` or ``None``.
        """
        rows = x.shape[0]
        query = fold_beams(scaled_sum(self.in_projection(x), target_embedding).unsqueeze(2), keys.size(0))
        mask = None if padding_mask is None else ~padding_mask[:, None, None, :]
        needed = need_weights or self.on_weights is not None
        averages, weights = attend(query, keys.unsqueeze(1), values.unsqueeze(1), mask, scale=1, need_weights=needed)
        if weights is not None:
            weights = unfold_weights(weights, rows)
            if self.on_weights is not None:
                self.on_weights(weights)
            weights = weights.squeeze(1) if need_weights else None
        return scaled_sum(self.out_projection(unfold_beams(averages, rows)), x), weights


def scaled_sum(x: Tensor, y: Tensor) -> Tensor:
    """``(x + y) * sqrt(0.5)``: its variance is that of ``x`` and ``y`` if these are independent and have equal ones."""
    return (x + y).mul_(math.sqrt(0.5))
