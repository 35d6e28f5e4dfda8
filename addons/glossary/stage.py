"""The line stage of ``generation.glossary``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqgen.addons.glossary.terms import Glossary, met_terms
from seqgen.config import GenerationConfig
from seqgen.extend import Computed, InputLine, LineOrder, LineStage, Resources, Translation, register_line_stage


def _terms_met(translation: Translation) -> list[bool]:
    """For each term of the source, whether the best hypothesis has one of its target terms as whole words."""
    return met_terms(translation.extras["terms"], translation.text)


@register_line_stage("glossary")
class GlossaryStage(LineStage):
    """Demands the target terms of a line's source terms, and says which of them are met.

    Args:
        glossary: the terms.
    """

    order = LineOrder.PHRASES
    key = "glossary"

    def __init__(self, glossary: Glossary):
        self.glossary = glossary

    @classmethod
    def build(cls, cfg: GenerationConfig, resources: Resources) -> GlossaryStage:
        """Read the glossary; see ``LineStage``."""
        return cls(Glossary(Path(cfg.glossary)))

    def read(self, line: InputLine) -> InputLine:
        """Demand the target terms; see ``LineStage``."""
        found = self.glossary.find(line.text)
        return line.demanding(*(term.targets for term in found)).with_extra("terms", found)

    def write(self, line: InputLine, translation: Translation) -> Translation:
        """Add ``terms`` and ``terms_met``; see ``LineStage``."""
        terms = list(line.extras.get("terms", ()))
        return translation.with_extra("terms", terms).with_extra("terms_met", Computed(_terms_met))

    def joined(self, whole: Translation, parts: Sequence[Translation]) -> Translation:
        """Add the terms of all sentences; see ``LineStage``."""
        terms = [term for part in parts for term in part.extras["terms"]]
        return whole.with_extra("terms", terms).with_extra("terms_met", Computed(_terms_met))

    def record(self, translation: Translation) -> Mapping[str, Any]:
        """Describe the terms in JSON; see ``LineStage``."""
        if not translation.extras.get("terms"):
            return {}
        pairs = zip(translation.terms, translation.terms_met, strict=True)
        return {"terms": [{"source": term.source, "targets": term.targets, "met": met} for term, met in pairs]}

    def counts(self, translation: Translation) -> Mapping[str, int]:
        """Count the terms; see ``LineStage``."""
        return {"found": len(translation.terms), "met": sum(translation.terms_met)}

    @classmethod
    def summary(cls, sums: Mapping[str, int]) -> str:
        """Say how many terms are met; see ``LineStage``."""
        found, met = sums["found"], sums["met"]
        return f"terms: {found} found in the sources (first column), {met} met in the outputs (second column)"
