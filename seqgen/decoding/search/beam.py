"""Beam search and greedy search, which stand in the core, by name."""

from __future__ import annotations

from seqgen.core.beam_search import BeamSearch, Greedy
from seqgen.registry import register_search

register_search("beam")(BeamSearch)
register_search("greedy")(Greedy)
