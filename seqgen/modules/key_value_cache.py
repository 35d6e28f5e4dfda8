"""How attention remembers keys and values between two steps.

A cache has no state of its own: it says what stands in the slots of the attention module that uses it, and how rows
move. Another layout is another class with these methods.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from seqgen.incremental_state import Slots, rows_of_parents, rows_of_sentences


class KeyValueCache(Protocol):
    """Keys, values and the padding among them, in slots."""

    def append(self, slots: Slots | None, key: Tensor, value: Tensor, padding_mask: Tensor | None, rows: int) -> Slots:
        """Add the keys and values of new positions.

        Args:
            slots: what is remembered so far; ``None`` at first.
            key: ``(B, H, K, D)``, where ``B`` is ``rows``, or fewer where rows share their keys.
            value: ``(B, H, K, D)``.
            padding_mask: ``(B, K)`` bool, true at padding; ``None`` where there is none.
            rows: rows of the batch.

        Returns:
            What is to be remembered, with ``prev_key``, ``prev_value`` and ``prev_key_padding_mask``.
        """
        ...

    def reorder(self, slots: Slots, new_order: Tensor) -> Slots:
        """See ``StatefulModule.reorder_slots``."""
        ...

    def reorder_within_beams(self, slots: Slots, parents: Tensor) -> Slots:
        """See ``StatefulModule.reorder_slots_within_beams``."""
        ...

    def select(self, slots: Slots, keep: Tensor, beam_size: int) -> Slots:
        """See ``StatefulModule.select_slots``."""
        ...


class GrowingCache:
    """Keys and values of self-attention, one position longer after each step.

    Slots:
        prev_key, prev_value: ``(N, H, K, D)``.
        prev_key_padding_mask: ``(N, K)`` bool, or ``None`` while there is no padding.
    """

    def append(self, slots: Slots | None, key: Tensor, value: Tensor, padding_mask: Tensor | None, rows: int) -> Slots:
        """Put new keys and values behind the old; see ``KeyValueCache.append``."""
        if slots is None:
            return {"prev_key": key, "prev_value": value, "prev_key_padding_mask": padding_mask}
        seen, new = slots["prev_key"].size(2), key.size(2)
        return {
            "prev_key": torch.cat([slots["prev_key"], key], dim=2),
            "prev_value": torch.cat([slots["prev_value"], value], dim=2),
            "prev_key_padding_mask": _join_masks(slots["prev_key_padding_mask"], padding_mask, rows, seen, new),
        }

    def reorder(self, slots: Slots, new_order: Tensor) -> Slots:
        """Move whole histories; see ``StatefulModule.reorder_slots``."""
        return _index_select(slots, new_order)

    def reorder_within_beams(self, slots: Slots, parents: Tensor) -> Slots:
        """Move whole histories; see ``StatefulModule.reorder_slots_within_beams``."""
        return self.reorder(slots, rows_of_parents(parents))

    def select(self, slots: Slots, keep: Tensor, beam_size: int) -> Slots:
        """Keep the histories of some sentences; see ``StatefulModule.select_slots``."""
        return self.reorder(slots, rows_of_sentences(keep, beam_size))


class StaticCache:
    """Keys and values of the encoder's output, which never change.

    They have one row for each row of the batch, or one for each sentence, which all of its beams share. Shared ones
    need not move while the beams of a sentence change places.

    Slots:
        prev_key, prev_value: ``(N / share, H, S, D)``.
        prev_key_padding_mask: ``(N / share, S)`` bool, or ``None`` where there is no padding.
        share: rows of the batch that share a row of keys.
    """

    def append(self, slots: Slots | None, key: Tensor, value: Tensor, padding_mask: Tensor | None, rows: int) -> Slots:
        """Remember the keys and values; see ``KeyValueCache.append``."""
        if slots is not None:
            raise ValueError("the keys and values of the encoder's output are remembered already")
        # Read at every step from now on, so that a contiguous copy pays.
        return {
            "prev_key": key.contiguous(),
            "prev_value": value.contiguous(),
            "prev_key_padding_mask": padding_mask,
            "share": rows // key.size(0),
        }

    def reorder(self, slots: Slots, new_order: Tensor) -> Slots:
        """Give each new row keys of its own, since the order may cross sentences.

        Where three rows share keys, the new rows ``[5, 0, 1]`` get copies of the keys ``[1, 0, 0]``.
        """
        return {**_index_select(slots, new_order // slots["share"]), "share": 1}

    def reorder_within_beams(self, slots: Slots, parents: Tensor) -> Slots:
        """Do nothing where the beams of a sentence share their keys; see ``StatefulModule``."""
        if slots["prev_key"].size(0) == parents.size(0):
            return slots
        return self.reorder(slots, rows_of_parents(parents))

    def select(self, slots: Slots, keep: Tensor, beam_size: int) -> Slots:
        """Keep the keys of some sentences; see ``StatefulModule.select_slots``."""
        if slots["share"] == beam_size:
            return _index_select(slots, keep)
        return self.reorder(slots, rows_of_sentences(keep, beam_size))


def _index_select(slots: Slots, rows: Tensor) -> Slots:
    return {name: value.index_select(0, rows) if isinstance(value, Tensor) else value for name, value in slots.items()}


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
