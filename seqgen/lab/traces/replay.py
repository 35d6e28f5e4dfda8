"""Computes n-best lists again from a trace alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from seqgen.errors import DataError
from seqgen.generation.backpointers import BackPointers
from seqgen.generation.candidates import Candidates
from seqgen.generation.finished import FinishedHypotheses
from seqgen.generation.observers import Outcome
from seqgen.generation.rules import RULES
from seqgen.lab.traces.header import TraceHeader
from seqgen.lab.traces.sentence import SentenceTrace, significant
from seqgen.lab.traces.trace import Trace
from seqgen.structures import Hypothesis
from seqgen.text.results import TextHypothesis, Translation

_CPU = torch.device("cpu")


def replayed(trace: Trace) -> Iterator[Translation]:
    """Decide again, at every step, which recorded candidates finish and continue.

    The recorded scores and the rules of the search decide; the recorded outcomes say only which candidates end.

    Args:
        trace: the trace.

    Yields:
        The translation of each line, with the same hypotheses and scores as in the decode.

    Raises:
        DataError: the strategy cannot be replayed, or other hypotheses or scores result than the trace has.
    """
    if why := trace.header.not_replayable:
        raise DataError(f"the trace {trace.path} cannot be replayed: {why}")
    for sentence in trace:
        found = _hypotheses(sentence, trace.header)[: trace.header.nbest]
        digits = trace.header.digits
        wanted = [(list(x.tokens), significant([x.score, *x.scores], digits)) for x in sentence.hypotheses]
        if wanted != [
            (x.tokens.tolist(), significant([x.score, *x.positional_scores.tolist()], digits)) for x in found
        ]:
            raise DataError(
                f"the trace {trace.path} is damaged: the n-best list of line {sentence.id + 1} does not follow from "
                "its steps; write it again"
            )
        items = [TextHypothesis(item.text, one) for item, one in zip(sentence.hypotheses, found, strict=True)]
        empty = torch.empty(0, dtype=torch.int64)
        yield Translation(sentence.id, sentence.source, empty, items, list(sentence.notes))


def _hypotheses(sentence: SentenceTrace, header: TraceHeader) -> list[Hypothesis]:
    """The hypotheses of a sentence, best first."""
    beam, steps = header.beam, sentence.steps
    finished = _finished(header)
    backpointers = BackPointers(1, beam, 0, _CPU)
    limits = torch.tensor([steps[0].max_length if steps else 0])
    for number, step in enumerate(steps):
        scores = step.scores.to(header.torch_dtype)
        candidates = Candidates(scores[None], step.tokens[None], step.beams[None]).padded(beam)
        ended = (step.outcomes == Outcome.FINISHED) | (step.outcomes == Outcome.ENDED_TOO_LOW)
        ended = torch.nn.functional.pad(ended, (0, candidates.scores.size(1) - len(ended)))
        active = finished.finalize(candidates, ended[None], number)
        if not bool(finished.done(active, number, limits)):
            backpointers.append(active)
    return finished.hypotheses(torch.tensor([0]), backpointers)[0]


def _finished(header: TraceHeader) -> FinishedHypotheses:
    rules = RULES[header.rules]
    if header.independent_rows:
        return rules.finished_rows(1, header.beam, header.ranking, _CPU)
    return rules.finished(1, header.beam, header.ranking, _CPU, header.early_stopping)
