"""Multi-head attention with a cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqgen.incremental_state import Slots, StateDict, StatefulModule, beam_size_of
from seqgen.modules.attention import attend, fold_beams, unfold_beams
from seqgen.modules.beam_table_cache import BeamTableCache, pays
from seqgen.modules.dropout import Dropout
from seqgen.modules.key_value_cache import GrowingCache, KeyValueCache, StaticCache
from seqgen.modules.linear import Linear


class MultiheadAttention(StatefulModule):
    """Attention in several subspaces at once (Vaswani et al. 2017, section 3.2.2).

    Self-attention projects to queries, keys and values by one matrix. With a state it remembers the keys and values of
    all positions so far. Encoder-decoder attention projects the encoder's output once and remembers that; the
    encoder's output may have one row for each sentence while the queries have one for each beam of it.

    Args:
        embed_dim: channels of the queries and of the output.
        num_heads: how many heads.
        encoder_dim: channels of the encoder's output, which makes this encoder-decoder attention; ``None`` for
            self-attention.
        head_dim: channels of each head, by default ``embed_dim / num_heads``.
        dropout: probability of dropping an attention weight.
        bias: whether projections have a bias.
        scale: factor of the scores, by default ``head_dim ** -0.5``.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        encoder_dim: int | None = None,
        head_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        scale: float | None = None,
    ):
        super().__init__()
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(f"{embed_dim} channels cannot be divided among {num_heads} heads")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = head_dim or embed_dim // num_heads
        self.scale = scale
        self.encoder_decoder = encoder_dim is not None
        inner_dim = self.num_heads * self.head_dim
        if encoder_dim is None:
            self.in_proj = Linear(embed_dim, 3 * inner_dim, bias=bias)
        else:
            self.q_proj = Linear(embed_dim, inner_dim, bias=bias)
            self.kv_proj = Linear(encoder_dim, 2 * inner_dim, bias=bias)
        self.out_proj = Linear(inner_dim, embed_dim, bias=bias)
        self.dropout = Dropout(dropout)
        self.cache: KeyValueCache = GrowingCache() if encoder_dim is None else StaticCache()
        self.beam_table = BeamTableCache()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize each of the query, key and value matrices as a Glorot matrix of its own, with gain 1/sqrt(2)."""
        fused = [self.q_proj, self.kv_proj] if self.encoder_decoder else [self.in_proj]
        for projection in fused:
            for block in projection.weight.detach().view(-1, self.num_heads * self.head_dim, projection.in_features):
                nn.init.xavier_uniform_(block, gain=0.5**0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        encoder_out: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        incremental_state: StateDict | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: ``(N, T, embed_dim)``; with a state, the new positions only.
            encoder_out: ``(N or sentences, S, encoder_dim)`` for encoder-decoder attention; with a state it is read
                only at the first step.
            key_padding_mask: ``(rows of the keys, K)`` bool, true at keys that nobody may attend to; with a state, of
                the new positions, or of ``encoder_out``.
            attn_mask: broadcastable to ``(N, H, T, K)``, where ``K`` counts remembered positions too: bool, true where
                attention is allowed, or a float that is added to the scores. Not for keys that beams share.
            is_causal: whether position ``i`` sees only positions up to ``i``, in a pass without a state.
            incremental_state: what was seen before.
            need_weights: whether the weights are wanted.

        Returns:
            ``(N, T, embed_dim)``, and the weights averaged over heads ``(N, T, K)`` where wanted.
        """
        rows = query.size(0)
        if self.encoder_decoder:
            q = self.q_proj(query).view(rows, query.size(1), self.num_heads, self.head_dim)
            keys = self._encoder_keys(encoder_out, key_padding_mask, rows, incremental_state)
        else:
            # (N, T, 3 * H * D) -> (N, T, 3, H, D)
            qkv = self.in_proj(query).view(rows, query.size(1), 3, self.num_heads, self.head_dim)
            q, k, v = qkv.unbind(2)
            if key_padding_mask is None and attn_mask is None and not need_weights and incremental_state is not None:
                out = self._attend_in_place(q, k.transpose(1, 2), v.transpose(1, 2), incremental_state)
                if out is not None:
                    return self.out_proj(out), None
            keys = self._own_keys(k.transpose(1, 2), v.transpose(1, 2), key_padding_mask, incremental_state)
        mask, is_causal = _join_masks(keys["prev_key_padding_mask"], attn_mask, is_causal, query.size(1))
        out, weights = attend(
            fold_beams(q, keys["prev_key"].size(0)),
            keys["prev_key"],
            keys["prev_value"],
            mask,
            is_causal=is_causal,
            scale=self.scale,
            dropout=self.dropout,
            need_weights=need_weights,
        )
        if weights is not None:
            # (B, H, r * T, K) -> (B, r * T, K) -> (N, T, K)
            weights = weights.mean(1).view(rows, query.size(1), -1)
        return self.out_proj(unfold_beams(out, rows)), weights

    def _attend_in_place(self, q: Tensor, key: Tensor, value: Tensor, incremental_state: StateDict) -> Tensor | None:
        """Attend by the beam table where that pays, one new position at a time; ``None`` where it does not.

        Args:
            q: ``(N, 1, H, D)``.
            key: ``(N, H, 1, D)``.
            value: likewise.
            incremental_state: what was seen before.
        """
        slots = self.get_slots(incremental_state)
        beam = beam_size_of(incremental_state)
        fresh = slots is None and getattr(incremental_state, "beam_table", False)
        if not (fresh or (slots is not None and "table" in slots)):
            return None
        length = 0 if slots is None else slots["length"]
        if key.size(2) > 1 or not pays(beam, length + 1) or key.size(0) % beam:
            if slots is not None:
                incremental_state[self.state_key] = self.beam_table.histories(slots)
            return None
        slots = self.beam_table.append(slots, key, value, beam)
        incremental_state[self.state_key] = slots
        keys, values, mask = self.beam_table.view(slots)
        out, _ = attend(fold_beams(q, keys.size(0)), keys, values, mask, scale=self.scale)
        return unfold_beams(out, key.size(0))

    def _own_keys(
        self, key: Tensor, value: Tensor, padding_mask: Tensor | None, incremental_state: StateDict | None
    ) -> Slots:
        if incremental_state is None:
            return {"prev_key": key, "prev_value": value, "prev_key_padding_mask": padding_mask}
        slots = self.get_slots(incremental_state)
        if slots is not None and "table" in slots:
            slots = self.beam_table.histories(slots)
        slots = self.cache.append(slots, key, value, padding_mask, key.size(0))
        incremental_state[self.state_key] = slots
        return slots

    def _encoder_keys(
        self, encoder_out: Tensor | None, padding_mask: Tensor | None, rows: int, incremental_state: StateDict | None
    ) -> Slots:
        slots = self.get_slots(incremental_state)
        if slots is not None:
            return slots
        if encoder_out is None:
            raise ValueError("encoder-decoder attention needs the encoder's output at its first step")
        # (B, S, 2 * H * D) -> (B, S, 2, H, D) -> two of (B, H, S, D)
        kv = self.kv_proj(encoder_out).view(*encoder_out.shape[:2], 2, self.num_heads, self.head_dim)
        key, value = kv.permute(2, 0, 3, 1, 4).unbind(0)
        if incremental_state is None:
            return {"prev_key": key, "prev_value": value, "prev_key_padding_mask": padding_mask}
        slots = self.cache.append(None, key, value, padding_mask, rows)
        self.set_slots(incremental_state, slots)
        return slots

    def reorder_slots(self, slots: Slots, new_order: Tensor) -> Slots:
        """Put rows into a new order, as the cache does it; see ``StatefulModule``."""
        return self.cache.reorder(self.beam_table.histories(slots) if "table" in slots else slots, new_order)

    def reorder_slots_within_beams(self, slots: Slots, parents: Tensor) -> Slots:
        """Put rows into a new order within each sentence, as the cache does it; see ``StatefulModule``."""
        if "table" in slots:
            return self.beam_table.reorder_within_beams(slots, parents)
        return self.cache.reorder_within_beams(slots, parents)

    def select_slots(self, slots: Slots, keep: Tensor, beam_size: int) -> Slots:
        """Keep the rows of some sentences, as the cache does it; see ``StatefulModule``."""
        if "table" in slots:
            return self.beam_table.select(slots, keep)
        return self.cache.select(slots, keep, beam_size)


def _join_masks(
    padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool, length: int
) -> tuple[Tensor | None, bool]:
    """One mask that allows what both allow, and whether causality is still to be seen to."""
    if is_causal and attn_mask is not None:
        raise ValueError("give either attn_mask or is_causal: a mask must itself hide later positions")
    if padding_mask is None:
        return attn_mask, is_causal
    allowed = ~padding_mask[:, None, None, :]
    if is_causal:
        allowed = allowed & torch.ones(length, length, dtype=torch.bool, device=allowed.device).tril()
    if attn_mask is None:
        return allowed, False
    if attn_mask.dtype == torch.bool:
        return attn_mask & allowed, False
    return attn_mask.masked_fill(~allowed, torch.finfo(attn_mask.dtype).min), False
