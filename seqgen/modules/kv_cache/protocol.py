"""The interface between attention and a key/value cache.

A cache is an object in the decoding state. It stores the keys and values of one attention module and reorders their
rows. A new kind of cache is one class, derived from ``KeyValueCache``; ``MultiheadAttention.cache`` is the class to
use::

    for layer in model.decoder.layers:
        layer.self_attn.cache = SlidingWindowCache
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.core.contract import Flagged, Flags, check_returned
from seqgen.core.errors import DecodingError
from seqgen.core.incremental_state import rows_of_parents, rows_of_sentences
from seqgen.modules.attention import StepMemory
from seqgen.modules.masks import step_mask


class Attended(NamedTuple):
    """The arguments of ``attend``.

    Attributes:
        keys: ``(B, H, K, D)``, where ``B`` is the number of rows, or fewer if rows share their keys.
        values: likewise.
        mask: mask of the scores ``(B, H, Q, K)``, see ``attend``; ``None`` if each query attends to all keys.
        is_causal: whether query ``i`` attends only to keys up to ``i``; ``mask`` is then ``None``.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None
    is_causal: bool


class KeysAndValues(NamedTuple):
    """The keys and values of each row of the batch, or of each sentence.

    Attributes:
        keys: ``(B, H, K, D)``, where ``B`` is the number of rows, or fewer if rows share their keys.
        values: likewise.
        padding_mask: ``(B, K)`` bool, true at padding; ``None`` if there is no padding.
    """

    keys: Tensor
    values: Tensor
    padding_mask: Tensor | None = None

    def view(self) -> KeysAndValues:
        """These keys and values; see ``KeyValueCache.view``."""
        return self

    def attended(self, attn_mask: Tensor | None, is_causal: bool, queries: int, dtype: torch.dtype) -> Attended:
        """See ``KeyValueCache.attended``; the padding mask is merged into ``attn_mask``."""
        keys, values, padding_mask = self
        if is_causal and (padding_mask is not None or keys.size(2) > queries):
            attn_mask, is_causal = step_mask(keys.size(2) - queries, queries, None, keys.device), False
        if padding_mask is None:
            return Attended(keys, values, attn_mask, is_causal)
        allowed = ~padding_mask[:, None, None, :]
        if attn_mask is None:
            attn_mask = allowed
        elif attn_mask.dtype == torch.bool:
            attn_mask = attn_mask & allowed
        else:
            attn_mask = attn_mask.masked_fill(~allowed, torch.finfo(attn_mask.dtype).min)
        return Attended(keys, values, attn_mask, False)


class KeyValueCache(Flagged, ABC):
    """The keys and values that one attention module has computed so far.

    An empty cache is made without arguments. Each method that changes the cache returns the one to use afterwards: this
    object, changed in place, or another one. A subclass implements ``append``, ``view`` and ``reorder``. It overrides
    ``reorder_beams`` and ``select`` if these can do less work than moving rows, and ``roll_back``, ``crop``
    and ``merge`` for speculative decoding and continuous batching.

    Letters: ``N`` rows of the batch, ``H`` heads, ``Q`` queries of a row, ``K`` keys, ``D`` the size of a head.
    """

    flags: ClassVar[Flags] = {
        "can_merge": ("append", "view", "reorder", "crop", "merge"),
        "step_memory": ("append", "view", "attended"),
    }

    can_merge: bool = False
    """True if ``merge`` and ``crop`` work, which continuous batching needs."""

    @abstractmethod
    def append(self, new: KeysAndValues, rows: int) -> KeyValueCache:
        """Append the keys and values of new positions.

        Args:
            new: keys and values of the new positions.
            rows: rows of the batch; more than those of ``new`` if beams share their keys.

        Returns:
            The cache to use from now on, as from all methods that change the cache.
        """

    @abstractmethod
    def view(self) -> KeysAndValues:
        """The keys and values of each row, or of each sentence if rows share them, at all positions."""

    @abstractmethod
    def reorder(self, new_order: Tensor) -> KeyValueCache:
        """Reorder rows; ``new_order`` ``(rows,)`` int64 is the old row that each new row continues."""

    def attended(self, attn_mask: Tensor | None, is_causal: bool, queries: int, dtype: torch.dtype) -> Attended:
        """The keys, values and mask with which attention is computed for the newest positions.

        Args:
            attn_mask: bool, true where attention is allowed, or a float that is added to the scores; broadcastable to
                ``(N, H, Q, K)``; ``None`` if all keys are attended to.
            is_causal: whether each position attends only to those up to itself; ``attn_mask`` is then ``None``.
            queries: number of newest positions of each row.
            dtype: dtype of the scores.

        Returns:
            The arguments of ``attend``.
        """
        view = check_returned(self, "view", self.view(), KeysAndValues)
        return view.attended(attn_mask, is_causal, queries, dtype)

    def step_memory(self) -> StepMemory | None:
        """The memory that a step of one position writes and reads; ``None`` if there is none, as in a user's cache."""
        return None

    def append_step(self, keys: Tensor, values: Tensor) -> KeyValueCache:
        """Append ``(B * H, T, D)`` keys and values of one position of each row to the step memory."""
        raise NotImplementedError

    def attended_step(self, attn_mask: Tensor | None, dtype: torch.dtype) -> tuple[StepMemory, Tensor | None]:
        """The keys, values and mask with which attention is computed in a step of one position; see ``attended``."""
        raise NotImplementedError

    def reorder_beams(self, parents: Tensor) -> KeyValueCache:
        """Reorder within sentences; ``parents`` ``(sentences, beam)`` int64 is the beam that each new row continues."""
        return check_returned(self, "reorder", self.reorder(rows_of_parents(parents)), KeyValueCache)

    def widen(self, copies: int) -> KeyValueCache:
        """Put ``copies`` rows, next to each other, in place of each row, for one step; see ``indirection.widened``."""
        rows = torch.arange(self.view().keys.size(0), device=self.view().keys.device)
        return check_returned(self, "reorder", self.reorder(rows.repeat_interleave(copies)), KeyValueCache)

    def select(self, keep: Tensor, beam_size: int) -> KeyValueCache:
        """Keep the sentences ``keep``, ``(kept,)`` int64, each with ``beam_size`` rows."""
        return check_returned(self, "reorder", self.reorder(rows_of_sentences(keep, beam_size)), KeyValueCache)

    def roll_back(self, positions: int) -> KeyValueCache:
        """Remove the last positions of all rows; speculative decoding needs it."""
        raise self._lacks("roll_back", "speculative decoding")

    def crop(self, positions: int) -> KeyValueCache:
        """Remove the first positions of all rows, which no row sees; continuous batching needs it."""
        raise self._lacks("crop", "continuous batching")

    def merge(self, other: KeyValueCache) -> KeyValueCache:
        """Append the rows of another cache, aligned at the last position; continuous batching needs it.

        The shorter cache is filled on the left with any finite values; start offsets mask these positions.
        """
        raise self._lacks("merge", "continuous batching")

    def _lacks(self, method: str, feature: str) -> DecodingError:
        name = type(self).__name__
        return DecodingError(f"the key/value cache {name} has no {method}; implement it, or decode without {feature}")


def join_rows(parts: list[KeysAndValues], left: bool) -> KeysAndValues:
    """Concatenate the rows of several batches, with shorter rows padded to the longest.

    The start offsets of rows hide positions added on the left; the padding mask hides positions added on the right.

    Args:
        parts: keys, values and padding of each batch.
        left: whether shorter rows are padded on the left rather than on the right.

    Returns:
        Keys, values and padding of all rows, those of the first batch first.
    """
    length = max(part.keys.size(2) for part in parts)
    keys, values, masks = [], [], []
    for part in parts:
        rows, _, width, _ = part.keys.shape
        missing = (length - width, 0) if left else (0, length - width)
        keys.append(F.pad(part.keys, (0, 0, *missing)) if any(missing) else part.keys)
        values.append(F.pad(part.values, (0, 0, *missing)) if any(missing) else part.values)
        mask = part.keys.new_zeros(rows, width, dtype=torch.bool) if part.padding_mask is None else part.padding_mask
        masks.append(F.pad(mask, missing, value=not left))
    hides = any(part.padding_mask is not None or (not left and part.keys.size(2) < length) for part in parts)
    return KeysAndValues(torch.cat(keys), torch.cat(values), torch.cat(masks) if hides else None)
