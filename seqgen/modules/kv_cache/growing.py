"""The plain cache of self-attention: each row has its own keys and values, and each step appends to them."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.modules.attention import rounded_keys
from seqgen.modules.kv_cache.protocol import Attended, KeysAndValues, KeyValueCache
from seqgen.modules.kv_cache.rows import join_rows

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
        self.filled[:, :, seen:end] = new

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

    def __init__(self) -> None:
        self.length = 0
        self.padding_mask: Tensor | None = None
        self._keys: _Memory | None = None
        self._values: _Memory | None = None

    @classmethod
    def of(cls, seen: KeysAndValues) -> Self:
        """A cache with the keys and values of another one, copied for each row."""
        cache = cls()
        cache._hold(seen)
        return cache

    def _hold(self, seen: KeysAndValues) -> None:
        self._keys, self._values = _Memory(seen.keys), _Memory(seen.values)
        self.length, self.padding_mask = seen.keys.size(2), seen.padding_mask

    def append(self, new: KeysAndValues, rows: int) -> Self:
        """Append new keys and values; see ``KeyValueCache``."""
        if self._keys is None:
            self._hold(KeysAndValues(new.keys[:, :, :0], new.values[:, :, :0]))
        for memory, tensor in zip(self._memories(), new[:2], strict=True):
            memory.append(tensor, self.length)
        added = new.keys.size(2)
        self.padding_mask = _join_masks(self.padding_mask, new.padding_mask, rows, self.length, added)
        self.length += added
        return self

    def view(self) -> KeysAndValues:
        """All positions; see ``KeyValueCache``."""
        keys, values = (memory.filled[:, :, : self.length] for memory in self._memories())
        return KeysAndValues(keys, values, self.padding_mask)

    def attended(self, attn_mask: Tensor | None, is_causal: bool, queries: int, dtype: torch.dtype) -> Attended:
        """All positions, and some that are not filled, but masked; see ``rounded_keys``."""
        filled = self.view().attended(attn_mask, is_causal, queries, dtype)
        memories = [memory.filled for memory in self._memories()]
        positions = rounded_keys(self.length, memories[0])
        derived = type(self).view is not GrowingCache.view  # of a subclass, whose keys are those of its ``view``
        if derived or filled.is_causal or positions == self.length:
            return filled
        keys, values = (memory[:, :, :positions] for memory in memories)
        return Attended(keys, values, _extended(filled.mask, self.length, keys), False)

    def reorder(self, new_order: Tensor) -> Self:
        """Move all keys and values of each row; see ``KeyValueCache``."""
        keys, values = self._memories()
        if new_order.device.type == "cpu" and torch.equal(new_order, torch.arange(keys.filled.size(0))):
            return self  # not checked on a GPU, where the comparison would wait for the device
        keys.reorder(new_order)
        values.reorder(new_order)
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask.index_select(0, new_order)
        return self

    def roll_back(self, positions: int) -> Self:
        """Remove the last positions."""
        self.length -= positions
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask[:, : self.length]
        return self

    def crop_left(self, positions: int) -> Self:
        """Remove the first positions."""
        keys, values, mask = self.view()
        mask = None if mask is None else mask[:, positions:].contiguous()
        self._hold(KeysAndValues(keys[:, :, positions:].contiguous(), values[:, :, positions:].contiguous(), mask))
        return self

    def merge(self, other: KeyValueCache) -> Self:
        """Append the rows of another cache; see ``KeyValueCache``."""
        self._hold(join_rows([self.view(), other.view()], left=True))
        return self

    def _memories(self) -> tuple[_Memory, _Memory]:
        if self._keys is None or self._values is None:
            raise ValueError("a key/value cache is empty until its first append")
        return self._keys, self._values


def _extended(mask: Tensor | None, length: int, keys: Tensor) -> Tensor:
    """A mask over ``length`` positions, extended to those of ``keys``, which are masked: ``(..., positions)``."""
    positions = keys.size(2)
    if mask is None:
        return (torch.arange(positions, device=keys.device) < length).unsqueeze(0)
    hidden = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    return F.pad(mask.expand(*mask.shape[:-1], length), (0, positions - length), value=hidden)


def _join_masks(old: Tensor | None, new: Tensor | None, rows: int, seen: int, added: int) -> Tensor | None:
    """Concatenate two masks to ``(rows, seen + added)``; a missing mask means no padding."""
    if old is None and new is None:
        return None
    device = old.device if old is not None else new.device if new is not None else None
    parts = [
        torch.zeros(rows, length, dtype=torch.bool, device=device) if mask is None else mask
        for mask, length in ((old, seen), (new, added))
    ]
    return torch.cat(parts, dim=1)
