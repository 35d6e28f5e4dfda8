"""Exact search by branch and bound, and what restores the states of earlier prefixes in the same way.

``common.user_dir=examples/papers/exact_search`` registers::

    generation.search=exact                 Stahlberg and Byrne 2019 (exact.py)
    generation.search=best_first|lattice    Xu, Jonnalagadda and Durrett 2022 (lattice.py)
"""

from . import exact, lattice

__all__ = ["exact", "lattice"]
