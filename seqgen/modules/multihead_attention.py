"""Multi-head attention with a cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqgen.incremental_state import IncrementalState, Slots, StateDict, StatefulModule, beam_size_of
from seqgen.modules.attention import attend, fold_beams, unfold_beams
from seqgen.modules.dropout import Dropout
from seqgen.modules.kv_cache.growing import GrowingCache, KeysAndValues, KeyValueCache, StaticCache
from seqgen.modules.kv_cache.indirection import BeamTable, BeamTableCache
from seqgen.modules.linear import Linear
from seqgen.modules.masks import step_mask


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

    Attributes:
        cache: how keys and values are remembered. Another ``KeyValueCache`` may take its place, and is then what every
            search uses.
        beam_cache: how those of self-attention are remembered where a search keeps beams in place; used beside the
            built-in ``cache`` only.
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
        self.beam_cache = BeamTableCache()
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
            if key_padding_mask is None and not need_weights:
                out = self._attend_in_place(q, k, v, attn_mask, is_causal, incremental_state)
                if out is not None:
                    return self.out_proj(out), None
            new = KeysAndValues(k.transpose(1, 2), v.transpose(1, 2), key_padding_mask)
            keys = self._own_keys(new, incremental_state)
        mask, is_causal = _join_masks(keys.padding_mask, attn_mask, is_causal, query.size(1))
        out, weights = attend(
            fold_beams(q, keys.keys.size(0)),
            keys.keys,
            keys.values,
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

    def _attend_in_place(
        self,
        q: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        is_causal: bool,
        incremental_state: StateDict | None,
    ) -> Tensor | None:
        """Attend by the beam table where that is to be used, ``None`` where not.

        Args:
            q: ``(N, T, H, D)``.
            key: likewise.
            value: likewise.
            attn_mask: see ``forward``.
            is_causal: likewise.
            incremental_state: what was seen before.
        """
        beams = self._beam_table(key, incremental_state)
        if beams is None or incremental_state is None:
            return None
        slots = self.beam_cache.append(self.get_slots(incremental_state), beams, key, value)
        rows, length = q.size(0), q.size(1)
        if is_causal and length > 1:
            attn_mask = step_mask(beams.length - length, length, None, q.device)
        keys, values = self.beam_cache.view(slots)
        mask = beams.mask(attn_mask, length, q.dtype)
        out, _ = attend(fold_beams(q, keys.size(0)), keys, values, mask, scale=self.scale)
        ends = getattr(incremental_state, "beam_table", None) is None and not beams.pays
        incremental_state[self.state_key] = self.beam_cache.histories(slots) if ends else slots
        return unfold_beams(out, rows)

    def _beam_table(self, key: Tensor, incremental_state: StateDict | None) -> BeamTable | None:
        """The table that this layer's keys are kept by; ``None`` where each row has keys of its own."""
        slots = self.get_slots(incremental_state)
        if slots is not None:
            beams: BeamTable | None = slots.get("beams")
            return beams
        if type(self.cache) is not GrowingCache:
            return None  # whoever chose another cache wants that one
        beam = beam_size_of(incremental_state) if incremental_state is not None else 1
        if beam == 1 or key.size(0) % beam or key.requires_grad:
            return None
        if not isinstance(incremental_state, IncrementalState) or incremental_state.beam_table is False:
            return None
        new = BeamTable(key.size(0) // beam, beam, key.device)
        shared: BeamTable = incremental_state.shared.setdefault("beam_table", new)
        return shared if shared.clock <= 1 else None  # the others are beyond their first step

    def remembered(self, incremental_state: StateDict) -> KeysAndValues | None:
        """The keys and values that each row has seen, however they are kept; ``None`` where nothing was seen yet.

        Args:
            incremental_state: the decoding state.

        Returns:
            Keys and values ``(N, H, K, D)`` of self-attention, or ``(N or sentences, H, S, D)`` of the source.
        """
        slots = self.get_slots(incremental_state)
        return None if slots is None else self.cache.view(self._by_row(slots))

    def _by_row(self, slots: Slots) -> Slots:
        """The slots with a history for each row."""
        return self.beam_cache.histories(slots) if "beams" in slots else slots

    def _own_keys(self, new: KeysAndValues, incremental_state: StateDict | None) -> KeysAndValues:
        if incremental_state is None:
            return new
        slots = self.get_slots(incremental_state)
        slots = self.cache.append(None if slots is None else self._by_row(slots), new, new.keys.size(0))
        incremental_state[self.state_key] = slots
        return self.cache.view(slots)

    def _encoder_keys(
        self, encoder_out: Tensor | None, padding_mask: Tensor | None, rows: int, incremental_state: StateDict | None
    ) -> KeysAndValues:
        slots = self.get_slots(incremental_state)
        if slots is not None:
            return self.cache.view(slots)
        if encoder_out is None:
            raise ValueError("encoder-decoder attention needs the encoder's output at its first step")
        # (B, S, 2 * H * D) -> (B, S, 2, H, D) -> two of (B, H, S, D)
        kv = self.kv_proj(encoder_out).view(*encoder_out.shape[:2], 2, self.num_heads, self.head_dim)
        key, value = kv.permute(2, 0, 3, 1, 4).unbind(0)
        new = KeysAndValues(key, value, padding_mask)
        if incremental_state is None:
            return new
        slots = self.cache.append(None, new, rows)
        self.set_slots(incremental_state, slots)
        return self.cache.view(slots)

    def reorder_slots(self, slots: Slots, new_order: Tensor) -> Slots:
        """Put rows into a new order, as the cache does it; see ``StatefulModule``."""
        return self.cache.reorder(self._by_row(slots), new_order)

    def reorder_slots_within_beams(self, slots: Slots, parents: Tensor) -> Slots:
        """Put rows into a new order within each sentence, as the cache does it; see ``StatefulModule``."""
        if "beams" in slots:
            return self.beam_cache.reorder_within_beams(slots, parents)
        return self.cache.reorder_within_beams(slots, parents)

    def select_slots(self, slots: Slots, keep: Tensor, beam_size: int) -> Slots:
        """Keep the rows of some sentences, as the cache does it; see ``StatefulModule``."""
        if "beams" in slots:
            return self.beam_cache.select(slots, keep)
        return self.cache.select(slots, keep, beam_size)

    def truncate_slots(self, slots: Slots, positions: int) -> Slots:
        """Forget the last positions; see ``StatefulModule``."""
        return self.beam_cache.truncate(slots, positions) if "beams" in slots else self.cache.truncate(slots, positions)

    def trim_slots(self, slots: Slots, positions: int) -> Slots:
        """Forget the first positions; see ``StatefulModule``."""
        return self.beam_cache.trim(slots, positions) if "beams" in slots else self.cache.trim(slots, positions)

    def merge_slots(self, slots: Slots, others: Slots) -> Slots:
        """Put the rows of another state behind those of this one; see ``StatefulModule``."""
        if "beams" in slots and "beams" in others:
            return self.beam_cache.merge(slots, others)
        return self.cache.merge(self._by_row(slots), self._by_row(others))


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
