"""Writes a trace as one HTML page that needs no network and no server.

The page shows the path of the reference through the search: at which step it left the beam, by how much, and what
stayed.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from seqgen.addons.traces.trace import OUTCOMES, SentenceTrace, StepTrace, Trace
from seqgen.extend import Outcome, render_template

_DIGITS = 9
"""Significant digits of scores in the page."""


def page_of(trace: Trace) -> str:
    """The page of a trace.

    Args:
        trace: the trace.

    Returns:
        The HTML text.

    Raises:
        DataError: the trace has values that do not fit.
    """
    with trace.wrong_values():
        data = {
            "header": dataclasses.asdict(trace.header),
            "complete": trace.complete,
            "sentences": [_sentence(sentence) for sentence in trace],
        }
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "backslashreplace"), 9, mtime=0)).decode()
    return render_template(__package__, "trace.html", title=trace.path.name, data=packed)


def _sentence(sentence: SentenceTrace) -> dict[str, Any]:
    path = reference_path(sentence)
    fate = None if path is None else {**dataclasses.asdict(path), "fate": str(path.fate)}
    return {**sentence.record(_DIGITS), "fate": fate}


class Fate(StrEnum):
    """The end of the reference in the search."""

    FOUND = "found"
    """It is in the n-best list."""
    REPLACED = "replaced"
    """It finished, but is not in the n-best list: better hypotheses took the places."""
    BELOW_BEAM = "below_beam"
    """Better candidates filled the beam."""
    ENDED_TOO_LOW = "ended_too_low"
    """It ended, but its rank was too low to be finalized, or all places were filled."""
    FORBIDDEN = "forbidden"
    """A processor forbade its next token."""
    SENTENCE_DONE = "sentence_done"
    """The sentence was done before the reference ended."""


@dataclass(frozen=True)
class ReferencePath:
    """The reference in the search.

    Attributes:
        fate: how it ended.
        step: the step at which it finished or was dropped.
        rank: its rank in the n-best list, if it was found.
        ranks: the rank of its candidate at each step, up to the last one at which it was a candidate.
        score: its cumulative score at ``step``, in nats; ``None`` if it was forbidden, or is not known.
        worst: rank, at ``step``, of the worst candidate that survived; -1 if it was not dropped.
        gap: how much more that candidate scored; ``None`` if not known. Negative if the reference scored more.
        by: class name of the processor that forbade it; empty if it is not known.
    """

    fate: Fate
    step: int
    rank: int = -1
    ranks: Sequence[int] = ()
    score: float | None = None
    worst: int = -1
    gap: float | None = None
    by: str = ""


def reference_path(sentence: SentenceTrace) -> ReferencePath | None:
    """Follow the reference through the search; ``None`` without a reference or steps.

    Args:
        sentence: the trace of the sentence.
    """
    reference = sentence.reference
    if reference is None or not sentence.steps or not reference.tokens:
        return None
    beam, ranks = 0, list[int]()
    for number, (step, token) in enumerate(zip(sentence.steps, reference.tokens, strict=False)):
        candidates = enumerate(zip(step.beams, step.tokens, step.outcomes, strict=True))
        rank = next((rank for rank, (*pair, letter) in candidates if pair == [beam, token] and letter != "I"), None)
        if rank is None:
            return _not_a_candidate(sentence, number, beam, ranks)
        ranks.append(rank)
        score, outcome = step.scores[rank], OUTCOMES[step.outcomes[rank]]
        if outcome is Outcome.FINISHED:
            tokens = sentence.tokens(number, rank)
            places = [place for place, item in enumerate(sentence.hypotheses) if list(item.tokens) == tokens]
            if not places:
                return ReferencePath(Fate.REPLACED, number, -1, ranks, score)
            return ReferencePath(Fate.FOUND, number, places[0], ranks, score)
        if outcome is not Outcome.CONTINUES:
            fate = Fate.ENDED_TOO_LOW if outcome is Outcome.ENDED_TOO_LOW else Fate.BELOW_BEAM
            worst = _worst_survivor(step)
            gap = None if worst < 0 else step.scores[worst] - score
            return ReferencePath(fate, number, -1, ranks, score, worst, gap)
        if step.done or rank not in step.next:
            return ReferencePath(Fate.SENTENCE_DONE, number, -1, ranks, score)
        beam = step.next.index(rank)
    return ReferencePath(Fate.SENTENCE_DONE, len(ranks) - 1, -1, ranks)


def _worst_survivor(step: StepTrace) -> int:
    """The rank of the candidate with the lowest score that continues or finishes; -1 if there is none."""
    ranks = filter(step.survives, range(len(step.scores)))
    return min(ranks, key=step.scores.__getitem__, default=-1)


def _not_a_candidate(sentence: SentenceTrace, number: int, beam: int, ranks: Sequence[int]) -> ReferencePath:
    """The reference was dropped without being one of the candidates."""
    step, reference = sentence.steps[number], sentence.reference
    assert reference is not None
    token, worst = reference.tokens[number], _worst_survivor(step)
    score: float | None = None
    if number < len(reference.search_scores):
        score = reference.search_scores[number]
    elif reference.scores:
        score = sentence.before(number, beam) + reference.scores[number]
    by = next((item.by for item in step.forbidden if (item.beam, item.token) == (beam, token)), "")
    fate = Fate.FORBIDDEN if by or score == float("-inf") else Fate.BELOW_BEAM
    score = None if score == float("-inf") else score
    gap = None if worst < 0 or score is None else step.scores[worst] - score
    return ReferencePath(fate, number, -1, ranks, score, worst, gap, by)
