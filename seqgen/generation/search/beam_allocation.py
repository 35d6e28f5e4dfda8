"""Dynamic beam allocation: the beam is divided among banks of hypotheses with equally many constraint tokens."""

from __future__ import annotations

import torch
from torch import Tensor

NONE = -1


def allocate(banks: Tensor, scores: Tensor) -> Tensor:
    """Order candidates of banks in rounds: the best of each bank, then the second best, the largest bank number first.

    Candidates of descending scores in the banks 2 2 1 1 0 are put into the order of banks 2 1 0 2 1.

    Args:
        banks: ``(sentences, K)`` int64.
        scores: ``(sentences, K)``; candidates of score ``-inf`` come last.

    Returns:
        ``(sentences, K)`` int64 columns.
    """
    banks = banks.masked_fill(scores == -torch.inf, NONE)
    by_score = scores.argsort(dim=1, descending=True, stable=True)
    sorted_banks, order = banks.gather(1, by_score).sort(dim=1, descending=True, stable=True)
    return by_score.gather(1, order).gather(1, take_turns(sorted_banks))


def take_turns(banks: Tensor) -> Tensor:
    """The columns of the first of each bank, then those of the second of each, and so on.

    Args:
        banks: ``(sentences, K)`` int64; candidates of one bank are adjacent; ``NONE`` comes last.

    Returns:
        ``(sentences, K)`` int64 columns: of banks 2 2 1 1 0, these are 0 2 4 1 3.
    """
    size = banks.size(1)
    # of banks 2 2 1 1 0, the first columns are 0 0 2 2 4, and the ranks within banks 0 1 0 1 0
    columns = torch.arange(size, device=banks.device).expand_as(banks)
    begins = torch.ones_like(banks, dtype=torch.bool)
    begins[:, 1:] = banks[:, 1:] != banks[:, :-1]
    turns = columns - columns.masked_fill(~begins, 0).cummax(dim=1).values
    return (turns + size * (banks == NONE)).argsort(dim=1, stable=True)


def repeated(entries: Tensor) -> Tensor:
    """Which entries occur earlier in their row: ``[5, 3, 5, 5]`` gives ``[False, False, True, True]``."""
    ordered, order = entries.sort(dim=1, stable=True)
    seen = torch.zeros_like(ordered, dtype=torch.bool)
    seen[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(seen).scatter(1, order, seen)
