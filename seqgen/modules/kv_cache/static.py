"""The cache of encoder-decoder attention: keys and values of the encoder's output, computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from seqgen.modules.attention import as_keys, take_rows
from seqgen.modules.kv_cache.protocol import KeysAndValues, KeyValueCache
from seqgen.modules.kv_cache.rows import join_rows


@dataclass(frozen=True, eq=False)
class StaticCache(KeyValueCache):
    """Keys and values of the encoder's output.

    They have one row for each row of the batch, or one for each sentence that all of its beams share. Shared keys and
    values stay in place when beams are reordered within a sentence.

    Attributes:
        seen: keys and values ``(N / share, H, S, D)`` and padding ``(N / share, S)``; ``None`` before the first step.
        share: rows of the batch that share a row of keys.
    """

    seen: KeysAndValues | None = None
    share: int = 1

    def append(self, new: KeysAndValues, rows: int) -> Self:
        """Keep the keys and values; see ``KeyValueCache``."""
        if self.seen is not None:
            raise ValueError("the cache already holds the keys and values of the encoder's output")
        # Every later step reads them, so a copy in the layout that is read fastest is worth its time.
        seen = KeysAndValues(as_keys(new.keys), new.values.contiguous(), new.padding_mask)
        return replace(self, seen=seen, share=rows // new.keys.size(0))

    def view(self) -> KeysAndValues:
        """All of the source; see ``KeyValueCache``."""
        if self.seen is None:
            raise ValueError("a key/value cache is empty until its first append")
        return self.seen

    def reorder(self, new_order: Tensor) -> Self:
        """Give each new row its own keys, since a row may continue one of another sentence.

        If three rows share keys, the new rows ``[5, 0, 1]`` get copies of the keys ``[1, 0, 0]``.
        """
        return replace(self._take(new_order // self.share), share=1)

    def reorder_within_beams(self, parents: Tensor) -> KeyValueCache:
        """Do nothing if the beams of a sentence share their keys; see ``KeyValueCache``."""
        return self if self.view().keys.size(0) == parents.size(0) else super().reorder_within_beams(parents)

    def select(self, keep: Tensor, beam_size: int) -> KeyValueCache:
        """Keep the keys of some sentences; see ``KeyValueCache``."""
        return self._take(keep) if self.share == beam_size else super().select(keep, beam_size)

    def roll_back(self, positions: int) -> Self:
        """Do nothing: the positions are those of the source."""
        return self

    def crop_left(self, positions: int) -> Self:
        """Do nothing: the positions are those of the source."""
        return self

    def merge(self, other: KeyValueCache) -> Self:
        """Append the rows of another cache; shorter sources are padded on the right."""
        if not isinstance(other, StaticCache):
            raise TypeError(f"a StaticCache cannot be merged with a {type(other).__name__}")
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
