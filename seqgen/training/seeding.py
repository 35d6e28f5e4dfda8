"""Random seeds that are a function of the run's seed and the position in training.

The generators are seeded before every batch, from the run's seed, the number of updates made and the index of the batch
in its update. Therefore resuming needs no saved generator states, and a batch gets the same random numbers whether two
ranks have one batch each or one process accumulates the gradients of both.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy
import torch


def seed_of(*parts: int) -> int:
    """Hash integers, such as a seed and an update, to one seed of 63 bits.

    Args:
        parts: the integers.
    """
    mixed = numpy.random.SeedSequence([part & 0xFFFFFFFFFFFFFFFF for part in parts]).generate_state(1, numpy.uint64)[0]
    return int(mixed) >> 1


def seed_everything(parts: Sequence[int]) -> None:
    """Seed the generators of Python, NumPy and PyTorch (on every device) with ``seed_of(*parts)``.

    Args:
        parts: the integers that determine the seed.
    """
    seed = seed_of(*parts)
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)
