"""The first difference between two decodes of a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.lab.traces.line_trace import LineTrace, ModelScores, StepTrace
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
    """The first difference between two decodes of a line.

    Attributes:
        step: number of the step; ``None`` if all steps agree and only the n-best lists differ.
        rank: rank of the candidate, or of the hypothesis in the n-best list, from 0.
        what: what differs, in words.
        size: difference between the scores at this rank, in nats; infinite if one decode has no candidate there.
        tie: whether the candidates differ while their scores are equal within the tolerance.
    """

    step: int | None
    rank: int
    what: str
    size: float
    tie: bool = False

    def precedes(self, other: Difference | None) -> bool:
        """Whether another difference is at a later step; ``None`` stands for no difference."""
        return other is None or _order(other) > _order(self)


def _order(difference: Difference) -> float:
    return float("inf") if difference.step is None else difference.step


def first_difference(one: LineTrace, other: LineTrace, tolerance: float) -> Difference | None:
    """Compare two decodes of a line step by step, then their n-best lists.

    Only candidates that continue or finish in at least one of the decodes are compared, rank by rank. Candidates whose
    scores differ by at most the tolerance may be in any order.

    Args:
        one: trace of one decode.
        other: trace of the other.
        tolerance: scores that differ by at most this value count as equal, in nats.

    Returns:
        The first difference; ``None`` if there is none.
    """
    if one.steps and other.steps:
        numbers: dict[tuple[int, int], int] = {}
        beams = [_first_beams(one.steps[0]), _first_beams(other.steps[0])]
        for step in range(max(len(one.steps), len(other.steps))):
            if step >= min(len(one.steps), len(other.steps)):
                return Difference(step, 0, DONE, float("inf"))
            a, b = (_Candidates(x.steps[step], known, numbers) for x, known in zip((one, other), beams, strict=True))
            if found := _in_step(step, a, b, tolerance):
                return found
            beams = [a.next_beams(), b.next_beams()]
    return nbest_difference(one.hypotheses, other.hypotheses, tolerance)


def _first_beams(step: StepTrace) -> list[int]:
    return [0] * (1 + int(torch.cat([step.beams, step.active_beams]).max()))


class _Candidates:
    """The candidates of a step, each with a number for its token sequence, which is the same in both decodes.

    Args:
        step: the step.
        beams: for each beam, the number of its token sequence.
        numbers: the numbers assigned so far, by the number of the sequence without its last token, and the last token.
            Both decodes share it.
    """

    def __init__(self, step: StepTrace, beams: Sequence[int], numbers: dict[tuple[int, int], int]):
        self.step, self.beams, self.numbers = step, beams, numbers
        self.tokens: list[int] = step.tokens.tolist()
        parents = [beams[beam] for beam in step.beams.tolist()]
        self.ids = [self._number(*pair) for pair in zip(parents, self.tokens, strict=True)]
        self.survives: list[bool] = step.survives.tolist()

    def _number(self, parent: int, token: int) -> int:
        return self.numbers.setdefault((parent, token), len(self.numbers) + 1)

    def next_beams(self) -> list[int]:
        """For each beam of the next step, the number of its token sequence."""
        pairs = zip(self.step.active_beams.tolist(), self.step.active_tokens.tolist(), strict=True)
        return [self._number(self.beams[beam], token) for beam, token in pairs]

    def rank_of(self, rank: int, other: _Candidates, tolerance: float) -> int:
        """The rank here of the other's sequence at ``rank``, if the two at ``rank`` tie; else ``rank``."""
        wanted = other.ids[rank]
        if self.ids[rank] == wanted or wanted not in self.ids:
            return rank
        found = self.ids.index(wanted)
        return found if _gap(self.step.scores[found], self.step.scores[rank]) <= tolerance else rank

    def may_hold(self, other: _Candidates, rank: int, tolerance: float) -> bool:
        """Whether the sequence at ``rank`` of ``other`` has, or can have, the same score here."""
        wanted, score = other.ids[rank], other.step.scores[rank]
        if wanted in self.ids:
            return _gap(self.step.scores[self.ids.index(wanted)], score) <= tolerance
        return float(self.step.scores[-1]) >= float(score) - tolerance  # it may rank just below the last candidate


def _in_step(step: int, one: _Candidates, other: _Candidates, tolerance: float) -> Difference | None:
    for rank in range(max(len(one.ids), len(other.ids))):
        for left, right in ((one, other), (other, one)):
            if rank < len(left.survives) and left.survives[rank]:
                if rank >= len(right.ids):
                    return Difference(step, rank, OUTCOME, float("inf"))
                if found := _of_candidate(step, rank, left, right, tolerance):
                    return found
    return None if one.step.done == other.step.done else Difference(step, 0, DONE, 0.0)


def _of_candidate(step: int, rank: int, one: _Candidates, other: _Candidates, tolerance: float) -> Difference | None:
    """Compare a surviving candidate of one decode with the same candidate of the other, or the one at the same rank."""
    at = other.rank_of(rank, one, tolerance)
    size = _gap(one.step.scores[rank], other.step.scores[at])
    if one.ids[rank] != other.ids[at]:
        what = TOKEN if one.tokens[rank] != other.tokens[at] else PARENT
        tie = size <= tolerance and one.may_hold(other, at, tolerance) and other.may_hold(one, rank, tolerance)
        return Difference(step, rank, what, size, tie)
    if size > tolerance:
        return Difference(step, rank, SCORE, size)
    if one.step.outcomes[rank] != other.step.outcomes[at]:
        return Difference(step, rank, OUTCOME, size, tie=at != rank)
    if (size := _gap(one.step.hypothesis_scores[rank], other.step.hypothesis_scores[at])) > tolerance:
        return Difference(step, rank, HYPOTHESIS_SCORE, size)
    return None


def nbest_difference(
    one: Sequence[TextHypothesis], other: Sequence[TextHypothesis], tolerance: float
) -> Difference | None:
    """Compare two n-best lists rank by rank.

    Args:
        one: one list.
        other: the other.
        tolerance: scores that differ by at most this value count as equal, in nats.

    Returns:
        The first difference; ``None`` if there is none.
    """
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


def model_difference(one: ModelScores, other: ModelScores, beams: Mapping[int, int]) -> float:
    """Compare the members' log-probabilities at a step of two decodes.

    Args:
        one: the scores of one decode.
        other: the scores of the other decode at the same step.
        beams: maps beams of the first decode to beams of the other with the same tokens.

    Returns:
        The largest difference in nats; infinite if the decodes have different numbers of members.
    """
    if len(one.members) != len(other.members):
        return float("inf")
    rows = list(beams), list(beams.values())
    pairs = zip(one.members, other.members, strict=True)
    return max((_largest_gap(a[rows[0]], b[rows[1]]) for a, b in pairs), default=0.0)


def _largest_gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().masked_fill(one == other, 0.0).max())  # -inf - -inf is NaN


def _gap(one: Tensor, other: Tensor) -> float:
    return _largest_gap(one.reshape(1), other.reshape(1))
