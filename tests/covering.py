"""Few cases of many: covering combinations, in which every value occurs, and cases that the slow tests alone have."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


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


def mostly_slow(cases: Iterable[Any], *fast: Any) -> list[Any]:
    """The cases, marked as slow unless a case, or the first value of a tuple, is among the ``fast`` ones."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*row, marks=() if row[0] in fast else pytest.mark.slow) for row in rows]
