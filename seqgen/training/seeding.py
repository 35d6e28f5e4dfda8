"""Randomness that is a function of the seed and of where training stands.

The generators are seeded anew before every batch, from the seed, the number of updates done and the index of the batch
in its update. So resuming needs no saved generator states, and two processes that share an update draw the same random
numbers for a batch as one process that accumulates both batches.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy
import torch


def seed_of(*parts: int) -> int:
    """Mix whole numbers, such as a seed and an update, into one seed of 63 bits."""
    mixed = numpy.random.SeedSequence([part & 0xFFFFFFFFFFFFFFFF for part in parts]).generate_state(1, numpy.uint64)[0]
    return int(mixed) >> 1


def seed_everything(parts: Sequence[int]) -> None:
    """Seed the generators of Python, NumPy and PyTorch (on every device).

    Args:
        parts: what the seed is a function of; the same parts give the same numbers.
    """
    seed = seed_of(*parts)
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)
