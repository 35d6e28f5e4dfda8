"""Keys and values of self-attention that do not move while beams change places.

A key is written once, into the slot of the beam that computed it. Which slot of a past position belongs to a beam's
history stands in a small table of integers, and only that table is gathered when beams change places. Attention then
runs over the slots of all beams of a sentence, with a mask made from the table.

Three beams after two steps; at the first, beam 0 wrote a, beam 1 b, beam 2 c; then beams 0 and 1 both continued b::

    slots       position 0: a b c      position 1: d e f
    table       beam 0: [1, 0]         so beam 0 sees b and d,
                beam 1: [1, 1]         beam 1 sees b and e,
                beam 2: [2, 2]         beam 2 sees c and f
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqgen.incremental_state import Slots

_BLOCK = 32
"""Positions that the memory has at first."""

_MOST_BEAMS, _MOST_SLOTS = 12, 2048
"""Up to so many beams, and positions times beams, the table is used."""


def pays(beam_size: int, length: int) -> bool:
    """Whether attending to the slots of all beams costs less than moving each beam's own keys and values.

    Args:
        beam_size: rows of each sentence.
        length: positions to attend to.
    """
    return 1 < beam_size <= _MOST_BEAMS and beam_size * length <= _MOST_SLOTS


class BeamTableCache:
    """Self-attention's keys and values in place, with a table of who sees what.

    Slots:
        keys, values: ``(sentences, H, capacity, beam, D)``.
        table: ``(sentences, beam, capacity)`` int64, the beam slot at each position that is a beam's history.
        length: positions that are filled.
    """

    def append(self, slots: Slots | None, key: Tensor, value: Tensor, beam_size: int) -> Slots:
        """Add the keys and values of one new position.

        Args:
            slots: what is remembered so far; ``None`` at first.
            key: ``(sentences * beam, H, 1, D)``.
            value: likewise.
            beam_size: rows of each sentence.

        Returns:
            What is to be remembered; the memory is that of ``slots``, written in place.
        """
        rows, heads, _, dim = key.shape
        sentences = rows // beam_size
        if slots is None:
            memory = [key.new_empty(sentences, heads, _BLOCK, beam_size, dim) for _ in range(2)]
            table = torch.zeros(sentences, beam_size, _BLOCK, dtype=torch.int64, device=key.device)
            slots = {"keys": memory[0], "values": memory[1], "table": table, "length": 0}
        elif slots["length"] == slots["table"].size(2):
            slots = {
                "keys": _grow(slots["keys"], 2),
                "values": _grow(slots["values"], 2),
                "table": _grow(slots["table"], 2),
                "length": slots["length"],
            }
        position = slots["length"]
        # (sentences * beam, H, 1, D) -> (sentences, beam, H, D) -> (sentences, H, beam, D)
        slots["keys"][:, :, position] = key.view(sentences, beam_size, heads, dim).transpose(1, 2)
        slots["values"][:, :, position] = value.view(sentences, beam_size, heads, dim).transpose(1, 2)
        slots["table"][:, :, position] = torch.arange(beam_size, device=key.device)
        return {**slots, "length": position + 1}

    def view(self, slots: Slots) -> tuple[Tensor, Tensor, Tensor]:
        """What the beams of a sentence attend to together.

        Args:
            slots: what is remembered.

        Returns:
            Keys and values ``(sentences, H, length * beam, D)``, and the mask ``(sentences, 1, beam, length * beam)``
            bool, true where a beam may attend.
        """
        length, table = slots["length"], slots["table"]
        beam = table.size(1)
        mask = table[:, :, :length].unsqueeze(-1) == torch.arange(beam, device=table.device)
        keys, values = (slots[name][:, :, :length].flatten(2, 3) for name in ("keys", "values"))
        return keys, values, mask.flatten(2).unsqueeze(1)

    def histories(self, slots: Slots) -> Slots:
        """Give each row a history of its own, as ``GrowingCache`` keeps it.

        Args:
            slots: what is remembered.

        Returns:
            ``prev_key`` and ``prev_value`` ``(sentences * beam, H, length, D)``.
        """
        length, table = slots["length"], slots["table"]
        heads, dim = slots["keys"].size(1), slots["keys"].size(-1)
        # (sentences, beam, length) -> (sentences, H, length, beam, D): which slot each beam reads at each position
        index = table[:, :, :length].transpose(1, 2)[:, None, :, :, None].expand(-1, heads, -1, -1, dim)
        rows = {
            # -> (sentences, H, length, beam, D) -> (sentences, beam, H, length, D)
            name: slots[source][:, :, :length].gather(3, index).permute(0, 3, 1, 2, 4).flatten(0, 1)
            for name, source in (("prev_key", "keys"), ("prev_value", "values"))
        }
        return {**rows, "prev_key_padding_mask": None}

    def reorder_within_beams(self, slots: Slots, parents: Tensor) -> Slots:
        """Let each beam continue another of its sentence: only the table is gathered."""
        index = parents.unsqueeze(-1).expand(-1, -1, slots["table"].size(2))
        return {**slots, "table": slots["table"].gather(1, index)}

    def select(self, slots: Slots, keep: Tensor) -> Slots:
        """Keep some sentences."""
        moved = {name: slots[name].index_select(0, keep) for name in ("keys", "values", "table")}
        return {**moved, "length": slots["length"]}


def _grow(memory: Tensor, dim: int) -> Tensor:
    """Double the capacity in one dimension."""
    return torch.cat([memory, torch.zeros_like(memory)], dim=dim)
