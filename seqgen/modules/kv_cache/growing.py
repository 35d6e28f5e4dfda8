"""The plain caches: each row has separate keys and values.

Each step appends to the cache of self-attention (``GrowingCache``). That of encoder-decoder attention is computed once
(``StaticCache``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.core.contract import Flags
from seqgen.core.incremental_state import rows_of_sentences
from seqgen.modules.attention import StepMemory, as_keys, rounded_keys, take_rows
from seqgen.modules.kv_cache.protocol import Attended, KeysAndValues, KeyValueCache, join_rows

_BLOCK = 32
"""The memory grows by this many positions, or by an eighth of those filled if that is more."""


class _Memory:
    """The keys, or the values, of all rows.

    Attributes:
        filled: ``(N, H, capacity, D)``.
        spare: a second memory of the same shape, into which rows are gathered; ``None`` until it is needed.
    """

    def __init__(self, filled: Tensor):
        self.filled = filled
        self.spare: Tensor | None = None

    def append(self, new: Tensor, seen: int) -> None:
        """Write ``new`` ``(N, H, T, D)`` after the first ``seen`` positions."""
        old, end = self.filled, seen + new.size(2)
        if new.requires_grad:  # autograd needs the old values, so the memory is not written in place
            self.filled = torch.cat([old[:, :, :seen], new], dim=2)
            return
        if old.size(2) < end:
            room = end + max(_BLOCK, seen // 8)
            self.filled = new.new_empty(new.size(0), new.size(1), room, new.size(3))
            self.filled[:, :, :seen] = old[:, :, :seen]
            self.filled[:, :, end:] = 0  # positions that are not filled can be read, see rounded_keys
        self.filled.narrow(2, seen, end - seen).copy_(new)

    def reorder(self, new_order: Tensor) -> None:
        """Gather rows, into the spare memory if the number of rows is the same."""
        filled, spare = self.filled, self.spare
        if filled.requires_grad or len(new_order) != filled.size(0):
            self.filled, self.spare = filled.index_select(0, new_order), None
            return
        if spare is None or spare.shape != filled.shape:
            spare = torch.empty_like(filled)
        self.filled, self.spare = torch.index_select(filled, 0, new_order, out=spare), filled


class GrowingCache(KeyValueCache):
    """Keys and values of self-attention, in memory with room for further positions.

    Attributes:
        length: positions that are filled.
        padding_mask: ``(N, length)`` bool, or ``None`` while there is no padding.
    """

    flags: ClassVar[Flags] = {"attended": ("view",)}

    can_merge = True

    def __init__(self, seen: KeysAndValues | None = None) -> None:
        self.length = 0
        self.padding_mask: Tensor | None = None
        self._memories: tuple[_Memory, ...] = ()
        self._step_memory: StepMemory | None = None
        if seen is not None:
            self._hold(seen)

    def _hold(self, seen: KeysAndValues) -> None:
        self._memories = _Memory(seen.keys), _Memory(seen.values)
        self.length, self.padding_mask = seen.keys.size(2), seen.padding_mask

    def append(self, new: KeysAndValues, rows: int) -> Self:
        """Append new keys and values; see ``KeyValueCache``."""
        if not self._memories:
            self._hold(KeysAndValues(new.keys[:, :, :0], new.values[:, :, :0]))
        seen, added = self.length, new.keys.size(2)
        for memory, further in zip(self._memories, new[:2], strict=True):
            memory.append(further, seen)
        masks = [mask for mask in (self.padding_mask, new.padding_mask) if mask is not None]
        if masks:  # one that is missing means no padding
            parts = ((self.padding_mask, seen), (new.padding_mask, added))
            filled = [masks[0].new_zeros(rows, length) if mask is None else mask for mask, length in parts]
            self.padding_mask = torch.cat(filled, dim=1)
        self.length += added
        return self

    def view(self) -> KeysAndValues:
        """All positions; see ``KeyValueCache``."""
        keys, values = (memory.filled.narrow(2, 0, self.length) for memory in self._memories)
        return KeysAndValues(keys, values, self.padding_mask)

    def step_memory(self) -> StepMemory | None:
        """See ``KeyValueCache.step_memory``."""
        keys, values = self._memories
        if self._step_memory is None or self._step_memory.source is not keys.filled:
            self._step_memory = StepMemory.of(keys.filled, values.filled)
        return None if self.padding_mask is not None else self._step_memory

    def append_step(self, keys: Tensor, values: Tensor) -> Self:
        """See ``KeyValueCache.append_step``."""
        memory = self.step_memory()
        assert memory is not None
        if self.length + keys.size(1) > memory.keys.size(2):
            by_row = (x.view(memory.rows, -1, *x.shape[1:]) for x in (keys, values))
            return self.append(KeysAndValues(*by_row), memory.rows)
        memory.write(self.length, keys, values)
        self.length += keys.size(1)
        return self

    def attended_step(self, attn_mask: Tensor | None, dtype: torch.dtype) -> tuple[StepMemory, Tensor | None]:
        """See ``KeyValueCache.attended_step``."""
        memory = self.step_memory()
        assert memory is not None
        positions = rounded_keys(self.length, memory.source)
        if positions != self.length:
            attn_mask = _extended(attn_mask, self.length, memory.source, positions)
        return memory.first(positions), attn_mask

    def attended(self, attn_mask: Tensor | None, is_causal: bool, queries: int, dtype: torch.dtype) -> Attended:
        """All positions, and some that are not filled, but masked; see ``rounded_keys``."""
        filled = self.view().attended(attn_mask, is_causal, queries, dtype)
        keys, values = (memory.filled for memory in self._memories)
        positions = rounded_keys(self.length, keys)
        if positions == self.length or filled.is_causal:
            return filled
        keys, values = keys[:, :, :positions], values[:, :, :positions]
        return Attended(keys, values, _extended(filled.mask, self.length, keys, positions), False)

    def reorder(self, new_order: Tensor) -> Self:
        """Move all keys and values of each row; see ``KeyValueCache``."""
        rows = self._memories[0].filled.size(0)
        if new_order.device.type == "cpu" and torch.equal(new_order, torch.arange(rows)):
            return self  # not checked on a GPU, where the comparison would wait for the device
        for memory in self._memories:
            memory.reorder(new_order)
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask.index_select(0, new_order)
        return self

    def select(self, keep: Tensor, beam_size: int) -> Self:
        """Copy the keys and values of some sentences, also of all, into new memory; see ``KeyValueCache``."""
        rows = rows_of_sentences(keep, beam_size)
        self._memories = tuple(_Memory(memory.filled.index_select(0, rows)) for memory in self._memories)
        self.padding_mask = None if self.padding_mask is None else self.padding_mask.index_select(0, rows)
        return self

    def roll_back(self, positions: int) -> Self:
        """Remove the last positions."""
        self.length -= positions
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask[:, : self.length]
        return self

    @property
    def memories(self) -> tuple[Tensor, Tensor]:
        """Keys and values, ``(N, H, capacity, D)``, of which ``length`` positions are filled."""
        keys, values = (memory.filled for memory in self._memories)
        return keys, values

    def crop(self, positions: int) -> Self:
        """Remove the first positions."""
        keys, values, mask = self.view()
        keys, values = (memory[:, :, positions:].contiguous() for memory in (keys, values))
        self._hold(KeysAndValues(keys, values, None if mask is None else mask[:, positions:]))
        return self

    def merge(self, other: KeyValueCache) -> Self:
        """Append the rows of another cache; see ``KeyValueCache``."""
        self._hold(join_rows([self.view(), other.view()], left=True))
        return self


def _extended(mask: Tensor | None, length: int, keys: Tensor, positions: int) -> Tensor:
    """A mask over ``length`` positions of ``keys``, extended by masked ones: ``(..., positions)``."""
    if mask is None:
        return (torch.arange(positions, device=keys.device) < length).unsqueeze(0)
    hidden = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    return F.pad(mask.expand(*mask.shape[:-1], length), (0, positions - length), value=hidden)


@dataclass(frozen=True, eq=False)
class StaticCache(KeyValueCache):
    """Keys and values of the encoder's output.

    They have one row for each row of the batch, or one for each sentence that all of its beams share. Shared keys and
    values stay in place when beams are reordered within a sentence.

    Attributes:
        seen: keys and values ``(N / share, H, S, D)`` and padding ``(N / share, S)``; ``None`` before the first step.
        share: rows of the batch that share a row of keys.
    """

    can_merge = True

    seen: KeysAndValues | None = None
    share: int = 1

    def append(self, new: KeysAndValues, rows: int) -> Self:
        """Keep the keys and values; see ``KeyValueCache``."""
        # Every later step reads them, so a copy in the layout that is read fastest is worth its time.
        seen = KeysAndValues(as_keys(new.keys), new.values.contiguous(), new.padding_mask)
        return replace(self, seen=seen, share=rows // new.keys.size(0))

    def view(self) -> KeysAndValues:
        """All of the source; see ``KeyValueCache``."""
        assert self.seen is not None, "a key/value cache is empty until its first append"
        return self.seen

    @cached_property
    def _step(self) -> tuple[StepMemory, Tensor | None]:
        keys, values, padding_mask = self.view()
        return StepMemory.of(keys, values), None if padding_mask is None else ~padding_mask[:, None, None, :]

    def step_memory(self) -> StepMemory | None:
        """See ``KeyValueCache.step_memory``."""
        return self._step[0]

    def attended_step(self, attn_mask: Tensor | None, dtype: torch.dtype) -> tuple[StepMemory, Tensor | None]:
        """See ``KeyValueCache.attended_step``; the padding is masked."""
        return self._step if attn_mask is None else super().attended_step(attn_mask, dtype)

    def reorder(self, new_order: Tensor) -> Self:
        """Give each new row a copy of its keys, since a row may continue one of another sentence.

        If three rows share keys, the new rows ``[5, 0, 1]`` get copies of the keys ``[1, 0, 0]``.
        """
        return replace(self._take(new_order // self.share), share=1)

    def reorder_beams(self, parents: Tensor) -> KeyValueCache:
        """Do nothing if the beams of a sentence share their keys; see ``KeyValueCache``."""
        return self if self.view().keys.size(0) == parents.size(0) else super().reorder_beams(parents)

    def select(self, keep: Tensor, beam_size: int) -> KeyValueCache:
        """Keep the keys of some sentences; see ``KeyValueCache``."""
        return self._take(keep) if self.share == beam_size else super().select(keep, beam_size)

    def widen(self, copies: int) -> Self:
        """Let more rows share the keys; see ``KeyValueCache``."""
        return replace(self, share=self.share * copies)

    def roll_back(self, positions: int) -> Self:
        """Do nothing: the positions are those of the source."""
        return self

    crop = roll_back

    def merge(self, other: KeyValueCache) -> Self:
        """Append the rows of another cache; shorter sources are padded on the right."""
        assert isinstance(other, StaticCache)
        one, two = (self, other) if self.share == other.share else (self._unshared(), other._unshared())
        keys, values, mask = join_rows([one.view(), two.view()], left=False)
        return replace(self, seen=KeysAndValues(as_keys(keys), values, mask), share=one.share)

    def _unshared(self) -> Self:
        keys = self.view().keys
        return self.reorder(torch.arange(keys.size(0) * self.share, device=keys.device))

    def _take(self, rows: Tensor) -> Self:
        keys, values, mask = self.view()
        mask = None if mask is None else mask.index_select(0, rows)
        return replace(self, seen=KeysAndValues(take_rows(keys, rows), take_rows(values, rows), mask))
