"""How a beam is shared out among hypotheses that have come differently far with their phrases."""

from __future__ import annotations

import torch
from torch import Tensor

NONE = -1


def allocate(banks: Tensor, scores: Tensor) -> Tensor:
    """Put candidates in the order in which the beam takes them: the best of each bank in turn, the furthest bank first.

    Banks 2 2 1 1 0 of falling scores become 2 1 0 2 1.

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
        banks: ``(sentences, K)`` int64; candidates of one bank stand together, those that do not count in ``NONE``.

    Returns:
        ``(sentences, K)`` int64 columns: of banks 2 2 1 1 0, these are 0 2 4 1 3.
    """
    size = banks.size(1)
    # each bank begins at column 0 0 2 2 4, so that the turns within banks are 0 1 0 1 0
    columns = torch.arange(size, device=banks.device).expand_as(banks)
    begins = torch.ones_like(banks, dtype=torch.bool)
    begins[:, 1:] = banks[:, 1:] != banks[:, :-1]
    turns = columns - columns.masked_fill(~begins, 0).cummax(dim=1).values
    return (turns + size * (banks == NONE)).argsort(dim=1, stable=True)


def repeated(entries: Tensor) -> Tensor:
    """Which entries have occurred before in their row: ``[5, 3, 5, 5]`` gives ``[no, no, yes, yes]``."""
    ordered, order = entries.sort(dim=1, stable=True)
    seen = torch.zeros_like(ordered, dtype=torch.bool)
    seen[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(seen).scatter(1, order, seen)
