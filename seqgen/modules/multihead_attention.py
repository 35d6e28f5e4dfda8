"""Multi-head attention with a key/value cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from seqgen.core.contract import Flags, check_returned, check_returned_tensor, is_built_in
from seqgen.core.errors import ConfigError
from seqgen.core.incremental_state import IncrementalState, ModuleState, StateDict, StatefulModule
from seqgen.modules.attention import StepMemory, attend, fold_beams, split_heads, unfold_beams, unfold_weights
from seqgen.modules.dropout import Dropout
from seqgen.modules.kv_cache.growing import GrowingCache, StaticCache
from seqgen.modules.kv_cache.indirection import IndirectionCache, IndirectionTable
from seqgen.modules.kv_cache.protocol import Attended, KeysAndValues, KeyValueCache
from seqgen.modules.linear import Linear
from seqgen.modules.masks import step_mask
from seqgen.modules.positions import Rotation
from seqgen.modules.step_plan import active_plan

_Source: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]
"""The encoder's output, its padding mask, and a mask over its positions."""


def choose_cache(incremental_state: StateDict, new: KeysAndValues, rows: int) -> KeyValueCache:
    """Make an empty cache for one module of self-attention.

    With several beams, keys and values stay in place, and all modules on a device share one indirection table, unless
    ``IncrementalState.beam_indirection`` is false. Each row has a copy of its keys and values if gradients are needed,
    since the memory of the table is written in place, and if positions are padding, for which the table has no mask.

    Args:
        incremental_state: the decoding state.
        new: keys and values of the first step.
        rows: rows of the batch.

    Returns:
        An empty cache.
    """
    keys = new.keys
    if not isinstance(incremental_state, IncrementalState) or incremental_state.beam_indirection is False:
        return GrowingCache()
    beam_size = incremental_state.beam_size
    if beam_size == 1 or rows % beam_size or keys.requires_grad or new.padding_mask is not None:
        return GrowingCache()
    table = IndirectionTable(rows // beam_size, beam_size, keys.device)
    tables: dict[torch.device, IndirectionTable] = incremental_state.shared.setdefault("indirection_table", {})
    shared = tables.setdefault(keys.device, table)
    if shared.clock > 1:  # the other modules have already computed more than one step
        return GrowingCache()
    return IndirectionCache(shared, stays=incremental_state.beam_indirection is True)


def _of_caches(method: str) -> Callable[..., ModuleState]:
    """The change of a module state that a method of each of its caches makes."""

    def change(self: StatefulModule, module_state: ModuleState, *arguments: Any, **named: Any) -> ModuleState:
        changed = {}
        for name, cache in module_state.items():
            new = getattr(cache, method)(*arguments, **named)
            changed[name] = new if new is cache else check_returned(cache, method, new, KeyValueCache)
        return changed

    return change


class MultiheadAttention(StatefulModule):
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2).

    In self-attention, one matrix projects to queries, keys and values. With a state, the keys and values of all
    positions so far are cached. Encoder-decoder attention projects the encoder's output once and caches the result; the
    encoder's output may have one row for each sentence when the queries have one for each beam. The cache is one object
    in the module state.

    Args:
        embed_dim: dimension of the queries and of the output.
        num_heads: number of heads.
        encoder_dim: dimension of the encoder's output, for encoder-decoder attention; ``None`` for self-attention.
        head_dim: dimension of each head; by default ``embed_dim / num_heads``.
        dropout: probability of dropping an attention weight.
        bias: whether projections have a bias.
        scale: factor of the scores; by default ``head_dim ** -0.5``.
        kv_heads: heads of keys and values, each shared by ``num_heads / kv_heads`` successive heads (grouped-query
            attention, Ainslie et al. 2023); by default ``num_heads``.
        soft_cap: bound of the scaled scores, see ``attention.soft_capped``; ``None`` for no bound.
        qk_norm: makes the normalization of the queries, and of the keys, of each head before they are rotated, for
            features of a dimension; in self-attention.

    Raises:
        ConfigError: ``num_heads`` does not divide ``embed_dim`` without a ``head_dim``.
        ValueError: ``kv_heads`` does not divide ``num_heads``.

    Attributes:
        cache: a class derived from ``KeyValueCache``, or another callable that returns an empty cache, for all search
            strategies; ``None`` for a built-in cache, see ``choose_cache``.
        on_weights: receives the weights of each head, ``(N, H, T, K)``, in every pass; ``None`` if nobody needs them,
            see ``seqgen.modules.inspection.record_passes``.
    """

    flags: ClassVar[Flags] = {"steps_by_head": ("forward", "own_heads", "encoder_keys")}

    safe_values: ClassVar[Mapping[str, Any]] = {"steps_by_head": False}

    steps_by_head: bool = True
    """True if a decoding step of one position is computed for all heads and beams together, by ``StepMemory``."""

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
        kv_heads: int | None = None,
        soft_cap: float | None = None,
        qk_norm: Callable[[int], nn.Module] = nn.Identity,
    ):
        super().__init__()
        if head_dim is None and embed_dim % num_heads:
            raise ConfigError(f"the hidden size {embed_dim} is not a multiple of the {num_heads} attention heads")
        if num_heads % (kv_heads or num_heads):
            raise ValueError(f"num_heads={num_heads} is not a multiple of kv_heads={kv_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.kv_heads = kv_heads or num_heads
        self.head_dim = head_dim or embed_dim // num_heads
        self.scale = scale
        self.soft_cap = soft_cap
        self.encoder_decoder = encoder_dim is not None
        inner_dim, kv_dim = self.num_heads * self.head_dim, self.kv_heads * self.head_dim
        if encoder_dim is None:
            self.in_proj = Linear(embed_dim, inner_dim + 2 * kv_dim, bias=bias)
        else:
            self.q_proj = Linear(embed_dim, inner_dim, bias=bias)
            self.kv_proj = Linear(encoder_dim, 2 * kv_dim, bias=bias)
        self.out_proj = Linear(inner_dim, embed_dim, bias=bias)
        self.q_norm, self.k_norm = qk_norm(self.head_dim), qk_norm(self.head_dim)
        if self.kv_heads != num_heads or soft_cap is not None or qk_norm is not nn.Identity:
            self.steps_by_head = False
        self.dropout = Dropout(dropout)
        self.cache: Callable[[], KeyValueCache] | None = None
        self.on_weights: Callable[[Tensor], None] | None = None
        self.reset_parameters()

    @property
    def merge_obstacle(self) -> str:
        """Why the states of two batches cannot be merged; empty if they can."""
        if self.cache is None or isinstance(self.cache, KeyValueCache) or (made := self.cache()).can_merge:
            return ""
        return f"the key/value cache {type(made).__name__} does not support it"

    def reset_parameters(self) -> None:
        """Initialize the query, key and value matrices each by Glorot initialization with gain 1/sqrt(2)."""
        rows, shared = self.num_heads * self.head_dim, self.kv_heads * self.head_dim
        if self.encoder_decoder:
            fused = [(self.q_proj, [rows]), (self.kv_proj, [shared, shared])]
        else:
            fused = [(self.in_proj, [rows, shared, shared])]
        for projection, sizes in fused:
            for block in projection.weight.detach().split(sizes):
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
        encoder_attn_mask: Tensor | None = None,
        is_causal: bool = False,
        rotation: Rotation | None = None,
        incremental_state: StateDict | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: ``(N, T, embed_dim)``; with a state, the new positions only.
            encoder_out: ``(N or sentences, S, encoder_dim)`` for encoder-decoder attention; with a state it is read
                only at the first step.
            key_padding_mask: bool, true at padding: ``(N, T)`` in self-attention, ``(N or sentences, S)`` in
                encoder-decoder attention; ``None`` if there is no padding.
            attn_mask: bool, true where attention is allowed, or a float that is added to the scores; broadcastable to
                ``(N, H, T, K)``, where ``K`` includes cached positions. Not for keys that beams share.
            encoder_attn_mask: of merged attention, the mask over positions of the source; ``attn_mask`` is then that
                over positions of the target.
            is_causal: whether each position of self-attention attends only to those up to itself; ``attn_mask`` is then
                ``None``.
            rotation: rotates the queries and keys of self-attention by their positions, see ``RotaryPositions``; keys
                are cached rotated.
            incremental_state: the decoding state; ``None`` for the parallel pass.
            need_weights: whether to return the weights.

        Returns:
            ``(N, T, embed_dim)``, and the weights averaged over heads, ``(N, T, K)`` or ``None``.

        Raises:
            ValueError: both ``attn_mask`` and ``is_causal`` are given, or ``encoder_out`` is missing at the first step.
        """
        if is_causal and attn_mask is not None:
            raise ValueError("pass either attn_mask or is_causal: a mask must itself hide later positions")
        rows, length, _ = query.shape
        is_causal = is_causal and length > 1
        cache = self._cache_in(incremental_state)
        if length == 1 and cache is not None and self._steps(query, rotation, need_weights):
            memory = cache.step_memory() if (attn_mask if self.encoder_decoder else key_padding_mask) is None else None
            if memory is not None:
                return self._step(query, cache, memory, attn_mask, incremental_state), None
        source = encoder_out, key_padding_mask, encoder_attn_mask
        q, seen = self._queries_and_keys(query, source, rotation, incremental_state)
        # Attention weights are those over each row's own positions, not over the slots that beams share.
        need_heads = need_weights or self.on_weights is not None
        seen = seen.view() if need_heads else seen
        keys, values, mask, is_causal = seen.attended(attn_mask, is_causal, length, q.dtype)
        out, weights = attend(
            fold_beams(q, keys.size(0)),
            keys,
            values,
            mask,
            is_causal=is_causal,
            scale=self.scale,
            soft_cap=self.soft_cap,
            dropout=self.dropout,
            need_weights=need_heads,
        )
        if weights is not None:
            weights = unfold_weights(weights, rows)
            weights = seen.of_source(weights) if isinstance(seen, MergedKeys) else weights
            if self.on_weights is not None:
                self.on_weights(weights)
            weights = weights.mean(1) if need_weights else None
        return self.out_proj(unfold_beams(out, rows)), weights

    def _queries_and_keys(
        self, query: Tensor, source: _Source, rotation: Rotation | None, incremental_state: StateDict | None
    ) -> tuple[Tensor, KeyValueCache | KeysAndValues | MergedKeys]:
        """The queries ``(N, T, H, D)`` of new positions, and the keys and values of all positions so far."""
        rows, encoder_out, padding_mask = query.size(0), *source[:2]
        if not self.encoder_decoder:
            q, k, v = self.own_heads(query, rotation)
            new = KeysAndValues(k.transpose(1, 2), v.transpose(1, 2), padding_mask)
            return q, self._appended(new, rows, incremental_state)
        q = self.q_proj(query).view(rows, -1, self.num_heads, self.head_dim)
        cache = self._cache_in(incremental_state)
        if cache is not None:
            return q, cache
        return q, self._appended(self.encoder_keys(encoder_out, padding_mask), rows, incremental_state)

    def _steps(self, query: Tensor, rotation: Rotation | None, need_weights: bool) -> bool:
        """True if a step of one position may be computed by ``_step``; a GPU has one kernel for all of attention."""
        return (
            self.steps_by_head
            and query.is_cpu
            and rotation is None
            and not (need_weights or self.training or self.on_weights is not None)
            and active_plan() is not None
        )

    def _step(
        self, query: Tensor, cache: KeyValueCache, memory: StepMemory, attn_mask: Tensor | None, incremental_state: Any
    ) -> Tensor:
        """Attend from one position of each row, ``(N, 1, embed_dim)``; the beams of a sentence may share a memory."""
        rows, heads, dim, shared = query.size(0), self.num_heads, self.head_dim, memory.rows
        if self.encoder_decoder:
            (q,) = split_heads(self.q_proj(query), shared, 1, heads)
        else:
            q, k, v = split_heads(self.in_proj(query), shared, 3, heads)
            appended = cache.append_step(k, v)
            if appended is not cache:  # with a memory for each row
                incremental_state[self.state_key] = {"cache": appended}
                q = q.view(shared, heads, -1, dim).transpose(1, 2).reshape(rows * heads, 1, dim)
                cache, shared = appended, rows
        memory, mask = cache.attended_step(attn_mask, q.dtype)
        out = memory.attend(q, mask, dim**-0.5 if self.scale is None else self.scale)
        out = out if shared == 1 else out.view(shared, heads, -1, dim)
        # (B, H, beam, D) -> (B, beam, H, D) -> (N, 1, H * D)
        return self.out_proj(out.transpose(-3, -2).reshape(rows, 1, heads * dim))

    def own_heads(self, query: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """The heads of self-attention.

        Args:
            query: ``(N, T, embed_dim)``.
            rotation: rotates the queries and keys.

        Returns:
            Queries ``(N, T, H, D)``, keys and values ``(N, T, G, D)``, where ``G`` is ``kv_heads``.
        """
        # (N, T, (H + 2 * G) * D) -> (N, T, H + 2 * G, D)
        projected = self.in_proj(query).view(*query.shape[:2], -1, self.head_dim)
        if self.kv_heads == self.num_heads:
            q, k, v = projected.view(*query.shape[:2], 3, -1, self.head_dim).unbind(2)  # faster than split
        else:
            q, k, v = projected.split([self.num_heads, self.kv_heads, self.kv_heads], dim=2)
        q, k = self.q_norm(q), self.k_norm(k)
        return (q, k, v) if rotation is None else (rotation(q), rotation(k), v)

    def encoder_keys(self, encoder_out: Tensor | None, padding_mask: Tensor | None) -> KeysAndValues:
        """Project the encoder's output to the keys and values of encoder-decoder attention.

        Args:
            encoder_out: ``(B, S, encoder_dim)``.
            padding_mask: ``(B, S)`` bool, true at padding; ``None`` if there is no padding.

        Returns:
            Keys and values ``(B, G, S, D)``, where ``G`` is ``kv_heads``.

        Raises:
            ValueError: there is no output.
        """
        if encoder_out is None:
            raise ValueError("encoder-decoder attention needs the encoder's output at its first step")
        # (B, S, 2 * G * D) -> (B, S, 2, G, D) -> two of (B, G, S, D)
        kv = self.kv_proj(encoder_out).view(*encoder_out.shape[:2], 2, self.kv_heads, self.head_dim)
        key, value = kv.permute(2, 0, 3, 1, 4).unbind(0)
        return KeysAndValues(key, value, padding_mask)

    def _appended(
        self, new: KeysAndValues, rows: int, incremental_state: StateDict | None
    ) -> KeyValueCache | KeysAndValues:
        """The cache with the new keys and values appended; without earlier ones of a target, only the new ones."""
        if incremental_state is None:
            return new
        old, stored = self._cache_in(incremental_state), new
        # the rows that later steps have; those of ``new`` are one for each sentence if the beams share a prompt
        if old is None and not self.encoder_decoder and isinstance(incremental_state, IncrementalState):
            rows = max(rows, len(incremental_state.start_offsets) * incremental_state.beam_size)
        cache = self._new_cache(incremental_state, new, rows) if old is None else old
        if (beams := rows // new.keys.size(0)) > 1 and isinstance(cache, GrowingCache):
            stored = KeysAndValues(*(x.repeat_interleave(beams, 0) for x in new[:2]))
        cache = check_returned(cache, "append", cache.append(stored, rows), KeyValueCache)
        if old is None and not is_built_in(type(cache)):
            view = check_returned(cache, "view", cache.view(), KeysAndValues)
            shape, like = (-1, new.keys.size(1), -1, new.keys.size(3)), (new.keys.dtype, new.keys.device)
            for name in ("keys", "values"):
                check_returned_tensor(cache, "view", getattr(view, name), shape, *like, f"{name} ")
        incremental_state[self.state_key] = {"cache": cache}
        # The positions of a prompt attend to each other, which needs no mask of an indirection table.
        return new if old is None and is_built_in(type(cache)) and not self.encoder_decoder else cache

    def _new_cache(self, incremental_state: StateDict, new: KeysAndValues, rows: int) -> KeyValueCache:
        if isinstance(self.cache, KeyValueCache):
            raise ConfigError(f"attention.cache is an object; set it to the class {type(self.cache).__name__} instead")
        if self.cache is not None:
            return check_returned(self, "cache", self.cache(), KeyValueCache)
        return StaticCache() if self.encoder_decoder else choose_cache(incremental_state, new, rows)

    def _cache_in(self, incremental_state: StateDict | None) -> KeyValueCache | None:
        module_state = None if incremental_state is None else incremental_state.get(self.state_key)
        cache: KeyValueCache | None = None if module_state is None else module_state["cache"]
        return cache

    # Each verb of the module state calls that of its caches; see KeyValueCache.
    reorder_state, reorder_state_beams = _of_caches("reorder"), _of_caches("reorder_beams")
    select_state, roll_back_state, crop_state = _of_caches("select"), _of_caches("roll_back"), _of_caches("crop")

    def merge_states(self, module_state: ModuleState, other: ModuleState) -> ModuleState:
        """Append the rows of another state; see ``KeyValueCache.merge``."""
        pairs = {name: (cache, other[name]) for name, cache in module_state.items()}
        return {name: check_returned(one, "merge", one.merge(two), KeyValueCache) for name, (one, two) in pairs.items()}


class MergedAttention(MultiheadAttention):
    """Causal self-attention and encoder-decoder attention in one: one softmax over both.

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

    def encoder_keys(self, encoder_out: Tensor | None, padding_mask: Tensor | None) -> KeysAndValues:
        """See ``MultiheadAttention.encoder_keys``."""
        keys, values, _ = super().encoder_keys(encoder_out, padding_mask)
        return KeysAndValues(self.k_norm(keys), values, padding_mask)

    def _queries_and_keys(
        self, query: Tensor, source: _Source, rotation: Rotation | None, incremental_state: StateDict | None
    ) -> tuple[Tensor, MergedKeys]:
        """See ``MultiheadAttention._queries_and_keys``."""
        q, k, v = self.own_heads(query, rotation)
        new, rows = KeysAndValues(k.transpose(1, 2), v.transpose(1, 2)), query.size(0)
        encoder_out, padding_mask, encoder_attn_mask = source
        state = self.get_state(incremental_state)
        if state is None:
            of_source = self.encoder_keys(encoder_out, padding_mask)
            if incremental_state is None:
                return q, MergedKeys(new, of_source, encoder_attn_mask)
            target = choose_cache(incremental_state, new, rows) if self.cache is None else self.cache()
            state = {"cache": target, "source": StaticCache().append(of_source, rows)}
        seen = MergedKeys(state["cache"].append(new, rows), state["source"])
        self.set_state(incremental_state, {"cache": seen.target, "source": seen.source})
        return q, seen


class MergedKeys(NamedTuple):
    """The keys and values of target and source.

    Attributes:
        target: those of the target.
        source: those of the source.
        source_mask: mask over the source besides its padding; ``None`` if there is no such mask.
    """

    target: KeyValueCache | KeysAndValues
    source: KeyValueCache | KeysAndValues
    source_mask: Tensor | None = None

    def view(self) -> MergedKeys:
        """The keys and values of each row; see ``KeyValueCache.view``."""
        return self._replace(target=self.target.view(), source=self.source.view())

    def of_source(self, weights: Tensor) -> Tensor:
        """The weights over the source, divided by their sum, given those over target and source."""
        weights = weights[..., -self.source.view().keys.size(2) :]
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)

    def attended(self, attn_mask: Tensor | None, is_causal: bool, queries: int, dtype: torch.dtype) -> Attended:
        """See ``KeyValueCache.attended``: first the positions of the target, then those of the source."""
        target = self.target.attended(attn_mask, is_causal, queries, dtype)
        source = self.source.attended(self.source_mask, False, queries, dtype)
        if target.keys.size(0) < source.keys.size(0):  # beams share the memory of the target, but not the source
            target = self.target.view().attended(attn_mask, is_causal, queries, dtype)
        if target.is_causal:
            target = target._replace(mask=step_mask(0, queries, None, target.keys.device))
        rows = target.keys.size(0)
        keys, values = (torch.cat([x, _of_rows(y, rows)], dim=2) for x, y in zip(target[:2], source[:2], strict=True))
        hidden = None if source.mask is None else _of_rows(source.mask, rows)
        masks = [_added(mask, keys, dtype) for mask in (target.mask, hidden)]
        shape = torch.broadcast_shapes(*(mask.shape[:-1] for mask in masks))
        sizes = target.keys.size(2), source.keys.size(2)
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
