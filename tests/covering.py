"""Covering combinations: every value of every dimension occurs, at a fraction of the cost of the product."""

from collections.abc import Sequence
from typing import Any


def covering(*dimensions: Sequence[Any], times: int = 1) -> list[tuple[Any, ...]]:
    """Combine the values of several dimensions so that each value of the longest one occurs ``times`` times.

    In the second round the values of the second dimension are shifted by one, those of the third by two, and so on:
    two rounds of ``"abc"`` and ``"xy"`` are ax, by, cx, and ay, bx, cy.
    """
    rows = range(max(len(values) for values in dimensions))
    return [
        tuple(values[(row + turn * place) % len(values)] for place, values in enumerate(dimensions))
        for turn in range(times)
        for row in rows
    ]
