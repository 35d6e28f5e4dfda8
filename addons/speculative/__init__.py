"""Speculative decoding: drafters, and the verification of drafted tokens; docs/decoding.md."""

from typing import TYPE_CHECKING

from seqgen.extend import lazy_names

if TYPE_CHECKING:
    from seqgen.addons.speculative.verification import (
        Draft,
        Drafter,
        Drafts,
        LookAhead,
        SpeculativeSearch,
        SpeculativeSession,
    )

__all__ = ["Draft", "Drafter", "Drafts", "LookAhead", "SpeculativeSearch", "SpeculativeSession"]

__getattr__, __dir__ = lazy_names(__name__)
