"""Where two decodes of the same line differ first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.inspection.trace import LineTrace, ModelScores, StepTrace
from seqgen.text.results import TextHypothesis

NBEST = "n-best list"
TOKEN, PARENT, SCORE, OUTCOME, HYPOTHESIS_SCORE, DONE, LENGTH = (
    "token",
    "beam that it continues",
    "cumulative score",
    "outcome",
    "score of the finished hypothesis",
    "whether the sentence is done",
    "number of hypotheses",
)


@dataclass(frozen=True)
class Difference:
    """The first difference of two decodes of a line.

    Attributes:
        step: at which step; ``None`` where all steps agree and the n-best lists differ.
        rank: of the candidate, or in the n-best list, from 0.
        what: what differs.
        size: of the scores at this rank, in nats; infinite where one of them has no candidate there.
        tie: whether different candidates stand here whose scores are equal within the tolerance.
    """

    step: int | None
    rank: int
    what: str
    size: float
    tie: bool = False

    def precedes(self, other: Difference | None) -> bool:
        """Whether another decode differs only at a later step, or nowhere."""
        return other is None or _order(other) > _order(self)


def _order(difference: Difference) -> float:
    return float("inf") if difference.step is None else difference.step


def first_difference(one: LineTrace, other: LineTrace, tolerance: float) -> Difference | None:
    """Compare two decodes of a line, step by step, and then their n-best lists.

    Only candidates that continue or finish in either decode are compared; the order of those that are dropped has no
    effect.

    Args:
        one: a decode.
        other: the other.
        tolerance: how far scores may differ, in nats.
    """
    if one.steps and other.steps:
        for step in range(max(len(one.steps), len(other.steps))):
            if step >= min(len(one.steps), len(other.steps)):
                return Difference(step, 0, DONE, float("inf"))
            if found := _in_step(step, one.steps[step], other.steps[step], tolerance):
                return found
    return nbest_difference(one.hypotheses, other.hypotheses, tolerance)


def _in_step(step: int, one: StepTrace, other: StepTrace, tolerance: float) -> Difference | None:
    for rank in range(max(len(one.tokens), len(other.tokens))):
        inside = [rank < len(trace.tokens) for trace in (one, other)]
        if not any(there and trace.survives[rank] for there, trace in zip(inside, (one, other), strict=True)):
            continue
        if not all(inside):
            return Difference(step, rank, OUTCOME, float("inf"))
        size = _gap(one.scores[rank], other.scores[rank])
        if one.beams[rank] != other.beams[rank] or one.tokens[rank] != other.tokens[rank]:
            what = TOKEN if one.tokens[rank] != other.tokens[rank] else PARENT
            return Difference(step, rank, what, size, tie=size <= tolerance)
        if size > tolerance:
            return Difference(step, rank, SCORE, size)
        if one.outcomes[rank] != other.outcomes[rank]:
            return Difference(step, rank, OUTCOME, size)
        if (size := _gap(one.hypothesis_scores[rank], other.hypothesis_scores[rank])) > tolerance:
            return Difference(step, rank, HYPOTHESIS_SCORE, size)
    return None if one.done == other.done else Difference(step, 0, DONE, 0.0)


def nbest_difference(
    one: Sequence[TextHypothesis], other: Sequence[TextHypothesis], tolerance: float
) -> Difference | None:
    """Compare two n-best lists rank by rank."""
    for rank in range(max(len(one), len(other))):
        if rank >= min(len(one), len(other)):
            return Difference(None, rank, LENGTH, float("inf"))
        a, b = one[rank], other[rank]
        size = _gap(torch.tensor(a.score), torch.tensor(b.score))
        if a.tokens.tolist() != b.tokens.tolist():
            return Difference(None, rank, TOKEN, size, tie=size <= tolerance)
        if size > tolerance:
            return Difference(None, rank, SCORE, size)
    return None


def model_difference(one: ModelScores, other: ModelScores, beams: Sequence[int]) -> float:
    """The largest difference of the members' log-probabilities, in nats; infinite where their numbers differ.

    Args:
        one: at a step of a decode.
        other: at the same step of the other.
        beams: those that exist in both.
    """
    if len(one.members) != len(other.members):
        return float("inf")
    pairs = zip(one.members, other.members, strict=True)
    return max((_largest_gap(a[list(beams)], b[list(beams)]) for a, b in pairs), default=0.0)


def _largest_gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().masked_fill(one == other, 0.0).max())  # -inf less -inf is NaN


def _gap(one: Tensor, other: Tensor) -> float:
    return _largest_gap(one.reshape(1), other.reshape(1))
