"""A key/value cache: keys and values of self-attention are stored in bfloat16, which takes half the memory of float32.

``use(model)`` gives it to every self-attention of a model.
"""

from __future__ import annotations

import torch
from torch import nn

from seqgen.incremental_state import Slots
from seqgen.modules import MultiheadAttention
from seqgen.modules.kv_cache.growing import GrowingCache, KeysAndValues


class BFloat16Cache(GrowingCache):
    """Converts what ``GrowingCache`` stores; rows are moved in bfloat16."""

    def append(self, slots: Slots | None, new: KeysAndValues, rows: int) -> Slots:
        """Store the keys and values of new positions.

        Args:
            slots: what has been stored so far; ``None`` at the first step.
            new: ``(N, H, positions, D)`` keys and values, with the padding among them.
            rows: rows of the batch.
        """
        stored = KeysAndValues(new.keys.bfloat16(), new.values.bfloat16(), new.padding_mask)
        return {**super().append(slots, stored, rows), "dtype": new.keys.dtype}

    def view(self, slots: Slots) -> KeysAndValues:
        """All keys and values, in the dtype in which attention is computed."""
        stored = super().view(slots)
        dtype: torch.dtype = slots["dtype"]
        return KeysAndValues(stored.keys.to(dtype), stored.values.to(dtype), stored.padding_mask)


def use(model: nn.Module) -> None:
    """Let every self-attention of a model store its keys and values this way."""
    for module in model.modules():
        if isinstance(module, MultiheadAttention) and not module.encoder_decoder:
            module.cache = BFloat16Cache()
