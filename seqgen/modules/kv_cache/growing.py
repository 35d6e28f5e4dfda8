"""The plain cache of self-attention: each row has keys and values of its own, one position more after each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from seqgen.modules.kv_cache.protocol import KeysAndValues, KeyValueCache
from seqgen.modules.kv_cache.rows import join_rows

_BLOCK = 32
"""Positions, or an eighth of those filled where that is more, by which the memory grows."""


@dataclass(frozen=True, eq=False)
class _Memory:
    """The keys, or the values, of all rows.

    Attributes:
        filled: ``(N, H, capacity, D)``.
        spare: a second memory of the same shape, into which rows are gathered; ``None`` until it is needed.
    """

    filled: Tensor
    spare: Tensor | None = None

    def append(self, new: Tensor, seen: int) -> _Memory:
        """Write ``new`` behind the first ``seen`` positions."""
        if new.requires_grad:  # what gradients go through must not be written over
            return _Memory(torch.cat([self.filled[:, :, :seen], new], dim=2))
        filled, end = self.filled, seen + new.size(2)
        if filled.size(2) < end:
            room = end + max(_BLOCK, seen // 8)
            filled = new.new_empty(new.size(0), new.size(1), room, new.size(3))
            filled[:, :, :seen] = self.filled[:, :, :seen]
        filled[:, :, seen:end] = new
        return _Memory(filled, self.spare)

    def reorder(self, new_order: Tensor) -> _Memory:
        """Gather rows, into the spare memory where that is possible."""
        filled, spare = self.filled, self.spare
        if filled.requires_grad or len(new_order) != filled.size(0):
            return _Memory(filled.index_select(0, new_order))
        if spare is None or spare.shape != filled.shape:
            spare = torch.empty_like(filled)
        return _Memory(torch.index_select(filled, 0, new_order, out=spare), filled)


@dataclass(frozen=True, eq=False)
class GrowingCache(KeyValueCache):
    """Keys and values of self-attention, in a memory with room for more positions.

    Attributes:
        keys: of all rows; ``None`` before the first step.
        values: likewise.
        length: positions that are filled.
        padding_mask: ``(N, length)`` bool, or ``None`` while there is no padding.
    """

    keys: _Memory | None = None
    values: _Memory | None = None
    length: int = 0
    padding_mask: Tensor | None = None

    @classmethod
    def of(cls, seen: KeysAndValues) -> Self:
        """A cache of what another cache holds, with a history for each row."""
        return cls(_Memory(seen.keys), _Memory(seen.values), seen.keys.size(2), seen.padding_mask)

    def append(self, new: KeysAndValues, rows: int) -> Self:
        """Put new keys and values behind the old; see ``KeyValueCache``."""
        added, old = new.keys.size(2), (self.keys, self.values)
        keys, values = (
            (_Memory(tensor[:, :, :0]) if memory is None else memory).append(tensor, self.length)
            for memory, tensor in zip(old, (new.keys, new.values), strict=True)
        )
        mask = _join_masks(self.padding_mask, new.padding_mask, rows, self.length, added)
        return replace(self, keys=keys, values=values, length=self.length + added, padding_mask=mask)

    def view(self) -> KeysAndValues:
        """All positions; see ``KeyValueCache``."""
        keys, values = self._memories()
        return KeysAndValues(keys.filled[:, :, : self.length], values.filled[:, :, : self.length], self.padding_mask)

    def reorder(self, new_order: Tensor) -> Self:
        """Move whole histories; see ``KeyValueCache``."""
        keys, values = self._memories()
        if new_order.device.type == "cpu" and torch.equal(new_order, torch.arange(keys.filled.size(0))):
            return self  # not asked on a GPU, where the answer would have to be waited for
        mask = None if self.padding_mask is None else self.padding_mask.index_select(0, new_order)
        return replace(self, keys=keys.reorder(new_order), values=values.reorder(new_order), padding_mask=mask)

    def roll_back(self, positions: int) -> Self:
        """Remove the last positions."""
        length = self.length - positions
        mask = None if self.padding_mask is None else self.padding_mask[:, :length]
        return replace(self, length=length, padding_mask=mask)

    def crop_left(self, positions: int) -> Self:
        """Remove the first positions."""
        keys, values, mask = self.view()
        rest = (keys[:, :, positions:].contiguous(), values[:, :, positions:].contiguous())
        return self.of(KeysAndValues(*rest, None if mask is None else mask[:, positions:].contiguous()))

    def merge(self, other: KeyValueCache) -> Self:
        """Put the rows of two batches behind each other, their positions aligned at the last one."""
        return self.of(join_rows([self.view(), other.view()], left=True))

    def _memories(self) -> tuple[_Memory, _Memory]:
        if self.keys is None or self.values is None:
            raise ValueError("a key/value cache is empty until its first append")
        return self.keys, self.values


def _join_masks(old: Tensor | None, new: Tensor | None, rows: int, seen: int, added: int) -> Tensor | None:
    """``(rows, seen + added)``, where a mask that is missing has no padding."""
    if old is None and new is None:
        return None
    device = old.device if old is not None else new.device if new is not None else None
    parts = [
        torch.zeros(rows, length, dtype=torch.bool, device=device) if mask is None else mask
        for mask, length in ((old, seen), (new, added))
    ]
    return torch.cat(parts, dim=1)
