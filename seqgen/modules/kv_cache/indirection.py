"""A cache of self-attention whose keys and values stay in place when beams are reordered.

Each key is written once, into a slot of its sentence's memory. An indirection table stores the slot of each position of
each beam; reordering beams reorders only this table. Attention runs over all slots of a sentence, with a mask made from
the table. All layers use the same slots, so that they share one table and one mask.

Three beams after two steps: in the first step they write a, b and c; then beams 0 and 1 both continue beam 1::

    slots       0 1 2 3 4 5
    keys        a b c d e f
    table       beam 0: [1, 3]         beam 0 attends to b and d,
                beam 1: [1, 4]         beam 1 attends to b and e,
                beam 2: [2, 5]         beam 2 attends to c and f

No beam uses slot 0 any more. When the memory is full, such slots are removed and the others are moved together. The
hypotheses of a sentence soon share most of their tokens, so that a long output needs few more slots than positions,
for any number of beams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.modules.attention import StepMemory, as_keys, empty_keys, rounded_keys, take_rows
from seqgen.modules.kv_cache.growing import GrowingCache
from seqgen.modules.kv_cache.protocol import Attended, KeysAndValues, KeyValueCache
from seqgen.modules.masks import step_mask

_BLOCK = 64
"""Free slots after unused ones are removed, or an eighth of those in use if that is more.

With fewer free slots, attention's matrix products are smaller, but all slots in use are copied more often.
"""

_MOST_SLOTS = 4
"""The table is used up to this many slots for each position; see ``IndirectionTable.is_profitable``."""


class IndirectionTable:
    """The slot of each position of each beam, for all layers of a decoder.

    Every layer requests every change, one layer after the other, with the number of changes that it has requested
    before (its ``clock``). The first request makes the change; those of the other layers do nothing.

    Args:
        sentences: sentences in the batch.
        beam_size: rows of each sentence.
        device: where the table is stored.

    Attributes:
        table: ``(sentences, beam, capacity)`` int64, the slot of each position.
        length: positions that are filled.
        used: slots that are filled; some of them may no longer be used by any beam.
        capacity: slots that the memory of each layer must have.
        clock: number of changes so far.
        collected: after a change that moved slots, ``(sentences, slots)`` int64, the old slot of each new one.
    """

    def __init__(self, sentences: int, beam_size: int, device: torch.device):
        self.table = torch.zeros(sentences, beam_size, 0, dtype=torch.int64, device=device)
        self.length = self.used = self.capacity = self.clock = 0
        self.collected: Tensor | None = None
        self._mask: tuple[Tensor | None, bool, Tensor] | None = None
        self._merged: tuple[IndirectionTable, IndirectionTable] | None = None

    @property
    def is_profitable(self) -> bool:
        """True if attending to all slots costs less than moving the keys and values of each beam.

        It does if hypotheses share most of their tokens, also with 50 beams. If 5 beams share nothing for 200
        positions, so that each position has 5 slots, moving the keys is as fast; with 12 such beams it is a little
        faster, because products with the keys of other beams cost more than copies of a beam's keys.
        """
        return self.used <= 4 * _BLOCK + _MOST_SLOTS * self.length

    def request(self, clock: int, change: Callable[[Any], None], argument: Any) -> int:
        """Make a change if no other layer has requested it before.

        Args:
            clock: the clock of the layer.
            change: the method that makes the change.
            argument: its argument.

        Returns:
            The next clock of the layer.
        """
        if clock == self.clock:
            self.clock += 1
            self.collected = self._mask = None
            change(argument)
        elif clock + 1 != self.clock:
            raise RuntimeError("all layers of a decoder must see the same positions and be reordered in the same way")
        return self.clock

    def append(self, shape: tuple[int, int]) -> None:
        """Assign slots to new positions: all beams of the first new position, then of the next.

        Args:
            shape: the number of positions, and that of slots for each: one for each beam, or one for all beams.
        """
        sentences, beam, room = self.table.shape
        positions, width = shape
        new = positions * width
        if self.used + new > self.capacity:
            self._collect()
            self.capacity = self.used + new + max(_BLOCK, self.used // 8)
        if self.length + positions > room:
            more = self.table.new_zeros(sentences, beam, positions + max(_BLOCK, room) // beam)
            self.table = torch.cat([self.table, more], dim=2)
        slots = torch.arange(self.used, self.used + new, device=self.table.device).view(positions, width)
        self.table.narrow(2, self.length, positions).copy_(slots.t())
        self.used += new
        self.length += positions

    def _collect(self) -> None:
        """Remove the slots that no beam of a sentence uses.

        If the beams use slots 0, 2 and 3 of 0 to 4, these become slots 0, 1 and 2. All sentences keep the same number
        of slots, so that some keep slots that they do not use.
        """
        sentences, beam, _ = self.table.shape
        table = self.table[:, :, : self.length].flatten(1)
        seen = torch.zeros(sentences, self.used, dtype=torch.int64, device=table.device).scatter_(1, table, 1)
        self.used = int(seen.sum(1).max()) if seen.numel() else 0
        self.collected = seen.argsort(dim=1, descending=True, stable=True)[:, : self.used]
        numbers = seen.cumsum(1) - 1
        self.table[:, :, : self.length] = numbers.gather(1, table).view(sentences, beam, self.length)

    def reorder(self, parents: Tensor) -> None:
        """Reorder beams within sentences; ``parents`` ``(sentences, beam)`` int64."""
        self.table = self.table.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.table.size(2)))

    def widen(self, copies: int) -> None:
        """Put several beams with the same slots in place of each beam."""
        self.table = self.table.repeat_interleave(copies, dim=1)

    def select(self, keep: Tensor) -> None:
        """Keep the sentences ``keep``, ``(kept,)`` int64."""
        self.table = self.table.index_select(0, keep)

    def roll_back(self, positions: int) -> None:
        """Remove the last positions."""
        self.length -= positions

    def crop(self, positions: int) -> None:
        """Remove the first positions."""
        self.length -= positions
        self.table = self.table[:, :, positions:].contiguous()

    def merge(self, other: IndirectionTable) -> IndirectionTable:
        """The table of the sentences of both, built at the first call.

        Positions are aligned at the last one. Positions that are added on the left of the shorter table, to which no
        query attends, share one additional slot, the last.
        """
        if self._merged is None or self._merged[0] is not other:
            merged = IndirectionTable(0, self.table.size(1), self.table.device)
            merged.length = max(self.length, other.length)
            merged.used = merged.capacity = max(self.used, other.used) + 1
            tables = []
            for one in (self, other):
                table = one.table[:, :, : one.length]
                lacking = table.new_full((table.size(0), table.size(1), merged.length - one.length), merged.used - 1)
                tables.append(torch.cat([lacking, table], dim=2))
            merged.table = torch.cat(tables)
            self._merged = other, merged
        return self._merged[1]

    def mask(
        self, attn_mask: Tensor | None, queries: int, dtype: torch.dtype, is_causal: bool = False, slots: int = 0
    ) -> Tensor:
        """The mask over all slots of a sentence, built once for all layers.

        Args:
            attn_mask: mask over positions: a float that is added to the scores, or bool, true where attention is
                allowed; broadcastable to ``(sentences * beam, heads, queries, length)``. ``None`` if all are allowed.
            queries: number of queries of each beam.
            dtype: dtype of the scores.
            is_causal: whether each position attends only to those up to itself; ``attn_mask`` is then ``None``.
            slots: number of slots in the mask, the same in all layers; at least ``used``, which 0 stands for.

        Returns:
            ``(sentences, heads or 1, beam * queries, slots)``, added to the scores; ``-inf`` at slots of other beams
            and at those that are not filled.
        """
        built = self._mask
        if built is None or built[0] is not attn_mask or built[1] != is_causal or built[2].dtype != dtype:
            allowed = attn_mask
            if is_causal:
                allowed = step_mask(self.length - queries, queries, None, self.table.device)
            built = self._mask = attn_mask, is_causal, self._build_mask(allowed, queries, dtype, slots or self.used)
        return built[2]

    def _build_mask(self, attn_mask: Tensor | None, queries: int, dtype: torch.dtype, count: int) -> Tensor:
        sentences, beam, _ = self.table.shape
        if attn_mask is None and queries == 1:
            mask = torch.full((sentences, 1, beam, count), -torch.inf, dtype=dtype, device=self.table.device)
            return mask.scatter_(3, self.table.narrow(2, 0, self.length).unsqueeze(1), 0.0)
        added = torch.zeros(1, 1, queries, 1, dtype=dtype, device=self.table.device)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            # Half of the lowest number and not -inf: with all positions masked, the softmax is uniform and not NaN.
            added = added.masked_fill(~attn_mask, torch.finfo(dtype).min / 2)
        elif attn_mask is not None:
            added = attn_mask.to(dtype)
        added = added[(None,) * (4 - added.dim())]
        # (1 or sentences * beam, h, Q, L) -> (1 or sentences, 1 or beam, h, Q, L) -> (sentences, h, beam, Q, L)
        added = added.unsqueeze(1) if added.size(0) == 1 else added.view(sentences, beam, *added.shape[1:])
        heads = added.size(2)
        added = added.transpose(1, 2).expand(sentences, heads, beam, queries, self.length)
        slots = self.table[:, None, :, None, : self.length].expand(added.shape)
        mask = torch.full((sentences, heads, beam, queries, count), -torch.inf, dtype=dtype, device=added.device)
        return mask.scatter_(4, slots, added).flatten(2, 3)


class IndirectionCache(KeyValueCache):
    """Keys and values of self-attention that stay in place, with an indirection table.

    Args:
        table: the table, which all layers share.
        stays: whether the table is always used, rather than only while it is faster.

    Attributes:
        memories: keys in the layout of ``empty_keys``, and contiguous values, ``(sentences, H, capacity, D)``; none
            before the first step.
        clock: number of changes of the table that this layer has requested.
    """

    can_merge = True

    def __init__(self, table: IndirectionTable, stays: bool = False):
        self.table = table
        self.stays = stays
        self.memories: tuple[Tensor, ...] = ()
        self.clock = 0
        self._step_memory: StepMemory | None = None

    def append(self, new: KeysAndValues, rows: int) -> KeyValueCache:
        """Write new keys and values into slots, in place; see ``KeyValueCache``.

        If the table is no longer faster, or if there is padding among the new positions, a ``GrowingCache`` replaces
        this cache.
        """
        if new.padding_mask is not None:
            return self.histories().append(new, rows)
        positions, sentences = new.keys.size(2), self.table.table.size(0)
        width = new.keys.size(0) // sentences  # 1 if the beams share the keys, otherwise the beam size
        # (sentences * width, H, T, D) -> (sentences, width, H, T, D) -> (sentences, H, T, width, D)
        by_slot = (x.view(sentences, width, *x.shape[1:]).permute(0, 2, 3, 1, 4) for x in (new.keys, new.values))
        # -> (sentences * H, T * width, D)
        return self._written(positions, *(x.reshape(-1, positions * width, x.size(-1)) for x in by_slot))

    def append_step(self, keys: Tensor, values: Tensor) -> KeyValueCache:
        """See ``KeyValueCache.append_step``."""
        return self._written(1, keys, values)

    def _written(self, positions: int, keys: Tensor, values: Tensor) -> KeyValueCache:
        """Write ``(sentences * H, slots, D)`` keys and values; returns the cache to use from now on."""
        table = self.table
        self._request(table.append, (positions, keys.size(1) // positions))
        if not self.memories or table.collected is not None:
            pairs = zip(self.memories or (None, None), (keys, values), strict=True)
            self.memories = tuple(_with_room(memory, table, added, added is keys) for memory, added in pairs)
        self.step_memory().write(table.used - keys.size(1), keys, values)
        return self if self.stays or table.is_profitable else self.histories()

    def step_memory(self) -> StepMemory:
        """See ``KeyValueCache.step_memory``."""
        if self._step_memory is None or self._step_memory.source is not self.memories[0]:
            self._step_memory = StepMemory.of(*self.memories)
        return self._step_memory

    def attended_step(self, attn_mask: Tensor | None, dtype: torch.dtype) -> tuple[StepMemory, Tensor | None]:
        """See ``KeyValueCache.attended_step``."""
        memory = self.step_memory()
        slots = rounded_keys(self.table.used, memory.source)
        return memory.first(slots), self.table.mask(attn_mask, 1, dtype, False, slots)

    def view(self) -> KeysAndValues:
        """The keys and values of each row, gathered from the slots; see ``KeyValueCache``."""
        table = self.table.table[:, :, : self.table.length]
        keys, values = (_pick(memory, table).flatten(0, 1) for memory in self.memories)
        return KeysAndValues(keys, values)

    def histories(self) -> GrowingCache:
        """A cache in which each row has a copy of its keys and values."""
        return GrowingCache(self.view() if self.memories else None)

    def attended(self, attn_mask: Tensor | None, is_causal: bool, queries: int, dtype: torch.dtype) -> Attended:
        """All slots of a sentence, for all of its beams together; see ``KeyValueCache``."""
        keys, values = self.memories
        slots = rounded_keys(self.table.used, keys)
        mask = self.table.mask(attn_mask, queries, dtype, is_causal, slots)
        return Attended(keys[:, :, :slots], values[:, :, :slots], mask, False)

    def reorder(self, new_order: Tensor) -> KeyValueCache:
        """Change to a ``GrowingCache``, since a row may continue one of another sentence."""
        return self.histories().reorder(new_order)

    def reorder_beams(self, parents: Tensor) -> KeyValueCache:
        """Reorder the table; keys and values stay in place."""
        return self._request(self.table.reorder, parents)

    def widen(self, copies: int) -> KeyValueCache:
        """Widen the table; see ``KeyValueCache``."""
        return self._request(self.table.widen, copies)

    def select(self, keep: Tensor, beam_size: int) -> KeyValueCache:
        """Keep some sentences; see ``KeyValueCache``."""
        self.memories = tuple(take_rows(memory, keep) for memory in self.memories)
        return self._request(self.table.select, keep)

    def roll_back(self, positions: int) -> KeyValueCache:
        """Remove the last positions; their slots are no longer used and will be removed later."""
        return self._request(self.table.roll_back, positions)

    def crop(self, positions: int) -> KeyValueCache:
        """Remove the first positions; their slots are no longer used and will be removed later."""
        return self._request(self.table.crop, positions)

    def merge(self, other: KeyValueCache) -> KeyValueCache:
        """Append the sentences of another cache; see ``IndirectionTable.merge``."""
        if not isinstance(other, IndirectionCache):
            return self.histories().merge(other)
        parts = [[memory[:, :, : one.table.used] for memory in one.memories] for one in (self, other)]
        self.table = self.table.merge(other.table)
        self.clock, capacity = self.table.clock, self.table.capacity
        keys, values = (
            torch.cat([F.pad(memory, (0, 0, 0, capacity - memory.size(2))) for memory in pair])
            for pair in zip(*parts, strict=True)
        )
        self.memories = as_keys(keys), values
        return self

    def _request(self, change: Callable[[Any], None], argument: Any) -> Self:
        self.clock = self.table.request(self.clock, change, argument)
        return self


def widened(cache: KeyValueCache, copies: int, tables: dict[int, IndirectionTable]) -> KeyValueCache:
    """A cache for one step in which each row is read with several next tokens; nothing that ``cache`` reads changes.

    A ``GrowingCache`` becomes one whose rows are sentences, with slot ``i`` for position ``i``, so that the ``copies``
    beams of each read the same memory.

    Args:
        cache: a cache of a forked state.
        copies: rows in place of each row, next to each other.
        tables: the tables by their number of positions, which the caches of a decoder share; empty at first.
    """
    if type(cache) is not GrowingCache or cache.padding_mask is not None or cache.memories[0].requires_grad:
        return cache.widen(copies)
    keys, values = cache.memories
    if cache.length not in tables:
        table = tables[cache.length] = IndirectionTable(keys.size(0), copies, keys.device)
        table.table = torch.arange(keys.size(2), device=keys.device).expand(keys.size(0), copies, -1).contiguous()
        table.length = table.used = cache.length
        table.capacity = keys.size(2)
    wide = IndirectionCache(tables[cache.length], stays=True)
    wide.memories = keys, values
    return wide


def _with_room(memory: Tensor | None, table: IndirectionTable, added: Tensor, are_keys: bool) -> Tensor:
    """Memory with the capacity of the table, with the slots in use at their current numbers."""
    sentences = table.table.size(0)
    shape = (sentences, added.size(0) // sentences, table.capacity, added.size(-1))
    larger = empty_keys(added, *shape) if are_keys else added.new_empty(shape)
    kept = 0
    if memory is not None and table.collected is not None:
        kept = table.collected.size(1)
        larger[:, :, :kept] = _collected(memory, table.collected)
    larger[:, :, kept:] = 0  # slots that are not filled can be read, see rounded_keys
    return larger


def _collected(memory: Tensor, slots: Tensor) -> Tensor:
    """Select slots ``(sentences, n)`` of a memory ``(sentences, H, capacity, D)``: ``(sentences, H, n, D)``."""
    if memory.stride(-1) == 1:
        return _pick(memory, slots.unsqueeze(1)).squeeze(1)
    transposed = memory.transpose(2, 3)
    return transposed.gather(3, slots[:, None, None, :].expand(*transposed.shape[:3], -1)).transpose(2, 3)


def _pick(memory: Tensor, slots: Tensor) -> Tensor:
    """Select slots ``(sentences, R, n)`` of a memory ``(sentences, H, capacity, D)``: ``(sentences, R, H, n, D)``.

    This is one selection of rows of ``(sentences * H * capacity, D)``: slot 2 of head 1 of sentence 0 is row
    ``(0 * H + 1) * capacity + 2``.
    """
    sentences, heads, capacity, dim = memory.shape
    first = torch.arange(0, sentences * heads * capacity, capacity, device=memory.device).view(sentences, 1, heads, 1)
    rows = first + slots.unsqueeze(2)
    return memory.flatten(0, 2).index_select(0, rows.flatten()).view(*rows.shape, dim)
