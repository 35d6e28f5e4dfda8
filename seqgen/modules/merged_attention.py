"""Merged attention: self-attention and encoder-decoder attention with one softmax (Zhang et al. 2025, "T5Gemma 2").

Letters: ``N`` rows of the batch, ``H`` heads, ``G`` heads of the keys, ``T`` new positions of the target, ``S``
positions of the source, ``D`` size of a head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqgen.incremental_state import StateDict
from seqgen.modules.kv_cache.growing import StaticCache
from seqgen.modules.kv_cache.protocol import Attended, KeysAndValues, KeyValueCache
from seqgen.modules.masks import step_mask
from seqgen.modules.multihead_attention import MultiheadAttention, choose_cache
from seqgen.modules.rotary import Rotation


class MergedAttention(MultiheadAttention):
    """Causal self-attention and encoder-decoder attention in one: a softmax over the positions of both.

    Keys and values of the target and of the source have the same projection and norm; those of the source are not
    rotated. The module state has two caches: that of the target is one of self-attention, the other a ``StaticCache``.

    Args:
        embed_dim: dimension of the queries, of the encoder's output and of the output.
        num_heads: number of heads.
        options: see ``MultiheadAttention``.

    Attributes:
        cache: of the target; see ``MultiheadAttention``.
        on_weights: receives the weights over the source, divided by their sum; see ``MultiheadAttention``.
    """

    def __init__(self, embed_dim: int, num_heads: int, **options: Any):
        super().__init__(embed_dim, num_heads, encoder_dim=embed_dim, **options)

    def own_heads(self, query: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """See ``MultiheadAttention.own_heads``."""
        q = self.q_norm(self.q_proj(query).view(*query.shape[:2], -1, self.head_dim))
        keys, values, _ = self.encoder_keys(query, None)
        k, v = keys.transpose(1, 2), values.transpose(1, 2)
        return (q, k, v) if rotation is None else (rotation(q), rotation(k), v)

    def encoder_keys(self, encoder_out: Tensor, padding_mask: Tensor | None) -> KeysAndValues:
        """See ``MultiheadAttention.encoder_keys``."""
        keys, values, _ = super().encoder_keys(encoder_out, padding_mask)
        return KeysAndValues(self.k_norm(keys), values, padding_mask)

    def forward(
        self,
        query: Tensor,
        encoder_out: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *,
        encoder_attn_mask: Tensor | None = None,
        is_causal: bool = False,
        rotation: Rotation | None = None,
        incremental_state: StateDict | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: ``(N, T, embed_dim)``; with a state, the new positions only.
            encoder_out: ``(N or sentences, S, embed_dim)``; with a state it is read only at the first step.
            key_padding_mask: ``(N or sentences, S)`` bool, true at padding of the source; ``None`` if there is none.
            attn_mask: mask over positions of the target; see ``MultiheadAttention``.
            encoder_attn_mask: mask over positions of the source, ``(N, 1, T, S)`` bool, in a parallel pass.
            is_causal: whether a position attends only to those of the target up to itself; ``attn_mask`` is then
                ``None``.
            rotation: rotates the queries, and the keys of the target.
            incremental_state: the decoding state; ``None`` for the parallel pass.
            need_weights: whether to return the weights.

        Returns:
            ``(N, T, embed_dim)``, and the weights over the source, divided by their sum and averaged over heads,
            ``(N, T, S)`` or ``None``.

        Raises:
            ValueError: ``encoder_out`` is missing at the first step.
        """
        q, k, v = self.own_heads(query, rotation)
        new, rows = KeysAndValues(k.transpose(1, 2), v.transpose(1, 2)), query.size(0)

        def source() -> KeysAndValues:
            if encoder_out is None:
                raise ValueError("merged attention needs the encoder's output at its first step")
            return self.encoder_keys(encoder_out, key_padding_mask)

        if incremental_state is None:
            seen = MergedKeys(new, source(), encoder_attn_mask)
        else:
            state = self.get_state(incremental_state) or {
                "cache": choose_cache(incremental_state, new) if self.cache is None else self.cache(),
                "source": StaticCache().append(source(), rows),
            }
            seen = MergedKeys(state["cache"].append(new, rows), state["source"])
            self.set_state(incremental_state, {"cache": seen.own, "source": seen.source})
        out, weights = self._attend(q, seen, attn_mask, is_causal, need_weights)
        if weights is not None:
            weights = weights[..., -seen.source.view().keys.size(2) :]
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        return out, self._reported(weights, need_weights)


class MergedKeys(NamedTuple):
    """The keys and values of target and source.

    Attributes:
        own: those of the target.
        source: those of the source.
        source_mask: mask over the source besides its padding; ``None`` if there is no such mask.
    """

    own: KeyValueCache | KeysAndValues
    source: KeyValueCache | KeysAndValues
    source_mask: Tensor | None = None

    def view(self) -> MergedKeys:
        """The keys and values of each row; see ``KeyValueCache.view``."""
        return self._replace(own=self.own.view(), source=self.source.view())

    def attended(self, attn_mask: Tensor | None, is_causal: bool, queries: int, dtype: torch.dtype) -> Attended:
        """See ``KeyValueCache.attended``: first the positions of the target, then those of the source."""
        own = self.own.attended(attn_mask, is_causal, queries, dtype)
        source = self.source.attended(self.source_mask, False, queries, dtype)
        if own.keys.size(0) < source.keys.size(0):  # beams share the memory of the target, but not the source
            own = self.own.view().attended(attn_mask, is_causal, queries, dtype)
        if own.is_causal:
            own = own._replace(mask=step_mask(0, queries, None, own.keys.device))
        rows = own.keys.size(0)
        keys, values = (torch.cat([x, _of_rows(y, rows)], dim=2) for x, y in zip(own[:2], source[:2], strict=True))
        hidden = None if source.mask is None else _of_rows(source.mask, rows)
        masks = [_added(mask, keys, dtype) for mask in (own.mask, hidden)]
        shape = torch.broadcast_shapes(*(mask.shape[:-1] for mask in masks))
        sizes = own.keys.size(2), source.keys.size(2)
        mask = torch.cat([mask.expand(*shape, size) for mask, size in zip(masks, sizes, strict=True)], dim=-1)
        return Attended(keys, values, mask, False)


def _of_rows(x: Tensor, rows: int) -> Tensor:
    """Copies of the values of each sentence for each of its rows, if there is one set for each sentence."""
    return x if x.size(0) == rows else x.repeat_interleave(rows // x.size(0), dim=0)


def _added(mask: Tensor | None, keys: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as a float that is added to the scores."""
    if mask is None:
        return keys.new_zeros(1, 1, dtype=dtype)
    hidden = torch.finfo(dtype).min / 2
    return keys.new_zeros((), dtype=dtype).masked_fill(~mask, hidden) if mask.dtype == torch.bool else mask
