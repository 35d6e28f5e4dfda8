"""A key/value cache: keys and values of self-attention are stored in bfloat16, which takes half the memory of float32.

``use(model)`` gives it to every self-attention of a model.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import nn

from seqgen.modules import MultiheadAttention
from seqgen.modules.kv_cache.growing import GrowingCache
from seqgen.modules.kv_cache.protocol import KeysAndValues


class BFloat16Cache(GrowingCache):
    """Converts what ``GrowingCache`` stores; rows are moved in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.float32

    def append(self, new: KeysAndValues, rows: int) -> Self:
        """Store the keys and values of new positions.

        Args:
            new: ``(N, H, positions, D)`` keys and values, with the padding among them.
            rows: rows of the batch.
        """
        self.dtype = new.keys.dtype
        return super().append(KeysAndValues(new.keys.bfloat16(), new.values.bfloat16(), new.padding_mask), rows)

    def view(self) -> KeysAndValues:
        """All keys and values, in the dtype in which attention is computed."""
        stored = super().view()
        return KeysAndValues(stored.keys.to(self.dtype), stored.values.to(self.dtype), stored.padding_mask)


def use(model: nn.Module) -> None:
    """Let every self-attention of a model store its keys and values this way."""
    for module in model.modules():
        if isinstance(module, MultiheadAttention) and not module.encoder_decoder:
            module.cache = BFloat16Cache
