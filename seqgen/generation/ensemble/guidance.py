"""Classifier-free guidance."""

from __future__ import annotations

from torch import Tensor


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Move away from what a model would write without its source (Sanchez et al. 2023).

    Args:
        conditional: ``(rows, V)`` log-probabilities with the source.
        unconditional: ``(rows, V)`` log-probabilities with an empty source.
        scale: 1 for the conditional ones, above 1 for more than that, 0 for the unconditional ones.

    Returns:
        ``(rows, V)`` scores that need not sum to one; where only one of the two is finite, the conditional one.
    """
    guided = scale * (conditional - unconditional) + unconditional
    return guided.where(conditional.isfinite() & unconditional.isfinite(), conditional)
