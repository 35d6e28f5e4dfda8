"""The line stage of ``generation.glossary``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqgen.addons.glossary.terms import Glossary, Term, match_terms
from seqgen.config import GenerationConfig
from seqgen.extend import (
    Computed,
    InputLine,
    LineOrder,
    LineStage,
    Resources,
    TextHypothesis,
    Translation,
    register_line_stage,
)


def _terms_met(translation: Translation) -> list[bool]:
    """For each term of the source, whether the best hypothesis has one of its target terms as whole words."""
    return match_terms(translation.extras["terms"], translation.text)[0]


UNLIKELY = -11.0
"""Log-probability of the least likely token of a target term, below which it does not fit into the output. Of Firefox's
en-pt, 3% of 88 target terms that the reference has are below, and 72% of those that were drawn at random."""


def _notes(line: InputLine, terms: Sequence[Term], best: TextHypothesis) -> Iterator[str]:
    """Say which target terms do not fit where they stand, and which occur too often."""
    tokens, scores = best.tokens.tolist(), best.positional_scores.tolist()
    phrases: dict[tuple[str, ...], Any] = dict(zip(map(tuple, line.demanded), line.phrases, strict=True))
    for targets, times in Counter(term.targets for term in terms).items():
        found = [
            (at, ids)
            for ids in phrases.get(targets, ())
            for at in range(len(tokens))
            if ids == tokens[at : at + len(ids)]
        ]
        places: dict[int, float] = {}
        for at, ids in found:
            places[at] = max(places.get(at, -math.inf), min(scores[at : at + len(ids)]))
        if any(score < UNLIKELY for score in sorted(places.values())[-times:]):
            yield f"the term {'|'.join(targets)!r} is improbable where it stands"
    for term in match_terms(terms, best.text)[1]:
        yield f"the term {term!r} occurs more often than its source term"


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
        """Add ``terms`` and ``terms_met``, and notes; see ``LineStage``."""
        terms = list(line.extras.get("terms", ()))
        notes = [note for best in translation.hypotheses[:1] for note in _notes(line, terms, best)]
        translation = replace(translation, notes=[*translation.notes, *notes])
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
