"""Confidence: features of translations, and the probability that an output is good enough; docs/confidence.md."""

from typing import TYPE_CHECKING

from seqgen.extend import lazy_names

if TYPE_CHECKING:
    from seqgen.addons.confidence.features import Feature as Feature

__getattr__, __dir__ = lazy_names(__name__)
