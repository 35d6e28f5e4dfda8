"""How attention remembers keys and values between two steps.

A cache has no state of its own: it says what stands in the slots of the attention module that uses it, and how rows
move. Another layout is another class with these methods.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.incremental_state import Slots, rows_of_parents, rows_of_sentences
from seqgen.modules.attention import as_keys, take_rows

_BLOCK = 32
"""Positions, or an eighth of those filled where that is more, that the memory gets at a time."""


class KeysAndValues(NamedTuple):
    """What is attended to.

    Attributes:
        keys: ``(B, H, K, D)``, where ``B`` is the number of rows, or fewer where rows share their keys.
        values: likewise.
        padding_mask: ``(B, K)`` bool, true at padding; ``None`` where there is none.
    """

    keys: Tensor
    values: Tensor
    padding_mask: Tensor | None


class KeyValueCache(Protocol):
    """Keys, values and the padding among them, in slots."""

    def append(self, slots: Slots | None, new: KeysAndValues, rows: int) -> Slots:
        """Add the keys and values of new positions.

        Args:
            slots: what is remembered so far; ``None`` at first.
            new: those of the new positions.
            rows: rows of the batch.

        Returns:
            What is to be remembered.
        """
        ...

    def view(self, slots: Slots) -> KeysAndValues:
        """What is remembered, to attend to."""
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

    def truncate(self, slots: Slots, positions: int) -> Slots:
        """See ``StatefulModule.truncate_slots``."""
        ...

    def trim(self, slots: Slots, positions: int) -> Slots:
        """See ``StatefulModule.trim_slots``."""
        ...

    def merge(self, slots: Slots, others: Slots) -> Slots:
        """See ``StatefulModule.merge_slots``."""
        ...


class GrowingCache:
    """Keys and values of self-attention, one position longer after each step.

    They stand in a memory with room for more positions, and move to a second one when rows change places.

    Slots:
        keys, values: ``(N, H, capacity, D)``.
        spare: the second memory of each, by name, once there is one.
        length: positions that are filled.
        padding_mask: ``(N, length)`` bool, or ``None`` while there is no padding.
    """

    def append(self, slots: Slots | None, new: KeysAndValues, rows: int) -> Slots:
        """Put new keys and values behind the old; see ``KeyValueCache.append``."""
        seen, added = 0 if slots is None else slots["length"], new.keys.size(2)
        old_mask = None if slots is None else slots["padding_mask"]
        grown: Slots = {
            "length": seen + added,
            "padding_mask": _join_masks(old_mask, new.padding_mask, rows, seen, added),
            "spare": {} if slots is None else slots["spare"],
        }
        for name, tensor in (("keys", new.keys), ("values", new.values)):
            memory = None if slots is None else slots[name]
            if tensor.requires_grad:  # what gradients go through must not be written over
                grown[name] = tensor if memory is None else torch.cat([memory[:, :, :seen], tensor], dim=2)
                continue
            if memory is None or memory.size(2) < seen + added:
                room = seen + added + max(_BLOCK, seen // 8)
                larger = tensor.new_empty(tensor.size(0), tensor.size(1), room, tensor.size(3))
                if memory is not None:
                    larger[:, :, :seen] = memory[:, :, :seen]
                memory = larger
            memory[:, :, seen : seen + added] = tensor
            grown[name] = memory
        return grown

    def view(self, slots: Slots) -> KeysAndValues:
        """All positions; see ``KeyValueCache.view``."""
        length = slots["length"]
        return KeysAndValues(slots["keys"][:, :, :length], slots["values"][:, :, :length], slots["padding_mask"])

    def reorder(self, slots: Slots, new_order: Tensor) -> Slots:
        """Move whole histories; see ``StatefulModule.reorder_slots``."""
        rows = slots["keys"].size(0)
        if new_order.device.type == "cpu" and torch.equal(new_order, torch.arange(rows)):
            return slots  # not asked on a GPU, which would have to be waited for
        mask = slots["padding_mask"]
        moved: Slots = {**slots, "padding_mask": None if mask is None else mask.index_select(0, new_order), "spare": {}}
        for name in ("keys", "values"):
            memory = slots[name]
            spare = slots["spare"].get(name)
            if memory.requires_grad or len(new_order) != rows:
                moved[name] = memory.index_select(0, new_order)
                continue
            if spare is None or spare.shape != memory.shape:
                spare = torch.empty_like(memory)
            moved[name] = torch.index_select(memory, 0, new_order, out=spare)
            moved["spare"][name] = memory
        return moved

    def reorder_within_beams(self, slots: Slots, parents: Tensor) -> Slots:
        """Move whole histories; see ``StatefulModule.reorder_slots_within_beams``."""
        return self.reorder(slots, rows_of_parents(parents))

    def select(self, slots: Slots, keep: Tensor, beam_size: int) -> Slots:
        """Keep the histories of some sentences; see ``StatefulModule.select_slots``."""
        return self.reorder(slots, rows_of_sentences(keep, beam_size))

    def truncate(self, slots: Slots, positions: int) -> Slots:
        """Forget the last positions."""
        mask, length = slots["padding_mask"], slots["length"] - positions
        return {**slots, "length": length, "padding_mask": None if mask is None else mask[:, :length]}

    def trim(self, slots: Slots, positions: int) -> Slots:
        """Forget the first positions."""
        keys, values, mask = (None if part is None else _after(part, positions) for part in self.view(slots))
        return {
            "keys": keys,
            "values": values,
            "spare": {},
            "length": slots["length"] - positions,
            "padding_mask": mask,
        }

    def merge(self, slots: Slots, others: Slots) -> Slots:
        """Put the rows of two batches behind each other, their positions aligned at the last one."""
        length = max(slots["length"], others["length"])
        parts = [self.view(slots), self.view(others)]
        return {
            "keys": _cat([part.keys for part in parts], length, left=True),
            "values": _cat([part.values for part in parts], length, left=True),
            "spare": {},
            "length": length,
            "padding_mask": _merge_masks(parts, length, left=True),
        }


class StaticCache:
    """Keys and values of the encoder's output, which never change.

    They have one row for each row of the batch, or one for each sentence, which all of its beams share. Shared ones
    need not move while the beams of a sentence change places.

    Slots:
        prev_key, prev_value: ``(N / share, H, S, D)``.
        prev_key_padding_mask: ``(N / share, S)`` bool, or ``None`` where there is no padding.
        share: rows of the batch that share a row of keys.
    """

    def append(self, slots: Slots | None, new: KeysAndValues, rows: int) -> Slots:
        """Remember the keys and values; see ``KeyValueCache.append``."""
        if slots is not None:
            raise ValueError("the keys and values of the encoder's output are remembered already")
        # Read at every step from now on, so that a copy pays.
        return {
            "prev_key": as_keys(new.keys),
            "prev_value": new.values.contiguous(),
            "prev_key_padding_mask": new.padding_mask,
            "share": rows // new.keys.size(0),
        }

    def view(self, slots: Slots) -> KeysAndValues:
        """All of the source; see ``KeyValueCache.view``."""
        return KeysAndValues(slots["prev_key"], slots["prev_value"], slots["prev_key_padding_mask"])

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

    def truncate(self, slots: Slots, positions: int) -> Slots:
        """Do nothing: the source has not grown."""
        return slots

    def trim(self, slots: Slots, positions: int) -> Slots:
        """Do nothing, likewise."""
        return slots

    def merge(self, slots: Slots, others: Slots) -> Slots:
        """Put the rows of two batches behind each other, the shorter sources padded on the right."""
        if slots["share"] != others["share"]:
            slots, others = (self._unshared(one) for one in (slots, others))
        parts = [self.view(slots), self.view(others)]
        length = max(part.keys.size(2) for part in parts)
        return {
            "prev_key": as_keys(_cat([part.keys for part in parts], length, left=False)),
            "prev_value": _cat([part.values for part in parts], length, left=False),
            "prev_key_padding_mask": _merge_masks(parts, length, left=False),
            "share": slots["share"],
        }

    def _unshared(self, slots: Slots) -> Slots:
        rows = slots["prev_key"].size(0) * slots["share"]
        return self.reorder(slots, torch.arange(rows, device=slots["prev_key"].device))


def _index_select(slots: Slots, rows: Tensor) -> Slots:
    return {name: take_rows(value, rows) if isinstance(value, Tensor) else value for name, value in slots.items()}


def _after(x: Tensor, positions: int) -> Tensor:
    """What stands behind some positions of ``(N, H, K, D)`` or ``(N, K)``, in a memory of its own."""
    return (x[:, positions:] if x.dim() == 2 else x[:, :, positions:]).contiguous()


def _cat(parts: list[Tensor], length: int, left: bool) -> Tensor:
    """Rows of several ``(N, H, K, D)`` behind each other, with zeros at positions that one of them lacks."""
    missing = [length - part.size(2) for part in parts]
    return torch.cat(
        [F.pad(part, (0, 0, n, 0) if left else (0, 0, 0, n)) for part, n in zip(parts, missing, strict=True)]
    )


def _merge_masks(parts: list[KeysAndValues], length: int, left: bool) -> Tensor | None:
    """The padding masks of two batches as one, padded to ``length``.

    Positions added on the left are those at which a sentence had not begun, which the starts hide; positions added on
    the right are padding.
    """
    if all(part.padding_mask is None and (left or part.keys.size(2) == length) for part in parts):
        return None
    masks = []
    for part in parts:
        rows, _, width, _ = part.keys.shape
        mask = part.keys.new_zeros(rows, width, dtype=torch.bool) if part.padding_mask is None else part.padding_mask
        masks.append(F.pad(mask, (length - width, 0)) if left else F.pad(mask, (0, length - width), value=True))
    return torch.cat(masks)


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
