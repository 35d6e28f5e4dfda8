"""A key/value cache: keys and values of self-attention are stored in bfloat16, which takes half the memory of float32.

It has no key on the command line. From Python::

    loaded = seqgen.load_model("runs/a")
    use(loaded.model)
    print(seqgen.Translator(loaded).translate(["a dog runs"])[0].text)
"""

from __future__ import annotations

from typing import Self

import torch
from torch import nn

from seqgen.extend import GrowingCache, KeysAndValues, MultiheadAttention


class BFloat16Cache(GrowingCache):
    """A ``GrowingCache`` whose memory is bfloat16; attention is computed in the dtype of the model."""

    can_merge = True  # the inherited methods work on the memory; without this line, lines do not join a running batch

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.float32

    def append(self, new: KeysAndValues, rows: int) -> Self:
        """Store the keys and values of new positions.

        Args:
            new: keys and values ``(N, H, positions, D)``, for ``N`` rows, ``H`` heads of size ``D``, and the padding
                mask ``(N, positions)`` or ``None``.
            rows: rows of the batch.

        Returns:
            The cache to use from now on, here this object.
        """
        self.dtype = new.keys.dtype
        return super().append(KeysAndValues(new.keys.bfloat16(), new.values.bfloat16(), new.padding_mask), rows)

    def view(self) -> KeysAndValues:
        """All keys and values ``(N, H, K, D)``, where ``K`` counts the positions so far, in the dtype of the model."""
        stored = super().view()
        return KeysAndValues(stored.keys.to(self.dtype), stored.values.to(self.dtype), stored.padding_mask)


def use(model: nn.Module) -> None:
    """Use this cache in every self-attention of ``model``."""
    for module in model.modules():
        if isinstance(module, MultiheadAttention) and not module.encoder_decoder:
            module.cache = BFloat16Cache
