"""One step of a traced sentence, and its form as a JSON object; docs/inspection.md describes the fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqgen.generation.observers import Outcome
from seqgen.lab.traces.header import Fields

OUTCOMES = {
    "C": Outcome.CONTINUES,
    "F": Outcome.FINISHED,
    "B": Outcome.BELOW_BEAM,
    "E": Outcome.ENDED_TOO_LOW,
    "I": Outcome.IMPOSSIBLE,
}
"""The outcomes by their letters; steps after the end of a sentence are not recorded."""

LETTERS = {outcome: letter for letter, outcome in OUTCOMES.items()}
SHORT = 5
"""Significant digits of values that need not be exact: members' scores and attention."""


@dataclass(frozen=True)
class ForbiddenToken:
    """A continuation that a processor forbids.

    Attributes:
        beam: the beam that it would continue.
        token: its token.
        lprob: the log-probability of the token before the processors, in nats.
        by: class name of the first processor that forbids it.
    """

    beam: int
    token: int
    lprob: float
    by: str


@dataclass(frozen=True)
class StepTrace:
    """One step of one sentence, with ``K`` candidates in the order in which the search strategy prefers them.

    Attributes:
        scores: the cumulative score of each candidate, in nats.
        tokens: the new token of each.
        beams: the beam that each continues.
        outcomes: a letter for each, see ``OUTCOMES``.
        next: for each beam of the next step the rank of the candidate that it is; -1 for a beam that does not exist.
        done: whether the sentence is done after the step.
        finished: by rank, the final scores of the candidates that finished, by which hypotheses are ranked.
        members: for each member of an ensemble the log-probability of each new token; empty if not recorded.
        forbidden: continuations that a processor forbids and that would otherwise score above the worst surviving
            candidate, best first.
    """

    scores: Sequence[float]
    tokens: Sequence[int]
    beams: Sequence[int]
    outcomes: str
    next: Sequence[int]
    done: bool = False
    finished: Mapping[int, float] = field(default_factory=dict)
    members: Sequence[Sequence[float]] = ()
    forbidden: Sequence[ForbiddenToken] = ()

    def survives(self, rank: int) -> bool:
        """Whether a candidate continues or finishes."""
        return self.outcomes[rank] in "CF"

    def kept(self, count: int) -> StepTrace:
        """The step with its first ``count`` candidates and those that survive; all that are possible for 0."""
        exists = [rank for rank, score in enumerate(self.scores) if score > float("-inf")]
        ranks = range(max(exists, default=-1) + 1)
        keep = [rank for rank in ranks if not count or self.survives(rank) or (rank < count and rank in exists)]
        if len(keep) == len(self.scores):
            return self
        place = {rank: new for new, rank in enumerate(keep)} | {-1: -1}
        return dataclasses.replace(
            self,
            scores=[self.scores[rank] for rank in keep],
            tokens=[self.tokens[rank] for rank in keep],
            beams=[self.beams[rank] for rank in keep],
            outcomes="".join(self.outcomes[rank] for rank in keep),
            next=[place[rank] for rank in self.next],
            finished={place[rank]: score for rank, score in self.finished.items()},
            members=[[member[rank] for rank in keep] for member in self.members],
        )

    def record(self, digits: int) -> dict[str, Any]:
        """The step as a JSON object, its scores with so many significant digits."""
        record: dict[str, Any] = {**vars(self), "scores": significant(self.scores, digits)}
        record["finished"] = [[rank, rounded(score, digits)] for rank, score in self.finished.items()]
        record["members"] = [significant(member, SHORT) for member in self.members]
        record["forbidden"] = [[x.beam, x.token, rounded(x.lprob, SHORT), x.by] for x in self.forbidden]
        return {name: value for name, value in record.items() if value or name not in OPTIONAL}

    @classmethod
    def of(cls, fields: Fields, beam: int, members: int, before: StepTrace | None) -> StepTrace:
        """Read a JSON object.

        Args:
            fields: the object.
            beam: beams of the search.
            members: members of the ensemble.
            before: the step before; ``None`` for the first step.

        Raises:
            ValueError: a field is missing or wrong.
        """
        if before is not None and before.done:
            raise ValueError(f"{fields.where} comes after the step that ended the sentence")
        tokens = fields.integers("tokens")
        count = len(tokens)
        beams, scores = fields.integers("beams", count, beam), fields.scores("scores", count)
        letters, ranks = fields.text("outcomes"), fields.integers("next", beam, count, lowest=-1)
        if len(letters) != count or set(letters) - set(OUTCOMES):
            raise ValueError(f"{fields.where} has wrong outcomes")
        pairs = zip(letters, beams, strict=True)
        if before is not None and any(before.next[parent] < 0 for letter, parent in pairs if letter != "I"):
            raise ValueError(f"{fields.where} continues a beam that does not exist")
        if any(letters[rank] != "C" for rank in ranks if rank >= 0):
            raise ValueError(f"{fields.where} has a beam that does not continue")
        given = {name: name in fields.values for name in OPTIONAL}
        return cls(
            scores=scores,
            tokens=tokens,
            beams=beams,
            outcomes=letters,
            next=ranks,
            done=fields.flag("done"),
            finished=dict(fields.pairs("finished", count)) if given["finished"] else {},
            members=fields.score_rows("members", members, count) if given["members"] else (),
            forbidden=_forbidden_of(fields, beam) if given["forbidden"] else (),
        )


OPTIONAL = ("finished", "members", "forbidden")
"""The fields that a file has only if they are not empty."""


class TracedSteps:
    """The way of candidates through the steps of a sentence.

    Attributes:
        steps: from the first step to the one that finished the sentence.
    """

    steps: Sequence[StepTrace]

    def path(self, step: int, rank: int) -> list[tuple[int, int]]:
        """The candidates that lead to a candidate, itself included: pairs of step and rank, the oldest first."""
        found = [(step, rank)]
        while step:
            rank = self.steps[step - 1].next[self.steps[step].beams[rank]]
            if rank < 0:
                break
            step -= 1
            found.append((step, rank))
        return found[::-1]

    def tokens(self, step: int, rank: int) -> list[int]:
        """The tokens of a candidate, the newest included."""
        return [self.steps[s].tokens[r] for s, r in self.path(step, rank)]


def _forbidden_of(fields: Fields, beam: int) -> list[ForbiddenToken]:
    """Read a list of lists of beam, token, log-probability and processor."""
    found = []
    for item in fields.list("forbidden"):
        if not isinstance(item, list) or len(item) != 4:
            raise ValueError(f"{fields.where} has wrong forbidden tokens")
        names = ("forbidden beam", "forbidden token", "forbidden log-probability", "forbidding processor")
        own = Fields(dict(zip(names, item, strict=True)), fields.where)
        token = ForbiddenToken(own.integer(names[0]), own.integer(names[1]), own.score(names[2]), own.text(names[3]))
        if token.beam >= beam:
            raise ValueError(f"{fields.where} has a wrong {names[0]}")
        found.append(token)
    return found


def rounded(value: float, digits: int) -> float | None:
    """A value with so many significant digits; ``None``, which is null in JSON, for minus infinity."""
    return None if value == float("-inf") else float(f"{value:.{digits}g}")


def significant(values: Sequence[float], digits: int) -> list[float | None]:
    """The values with so many significant digits."""
    return [rounded(value, digits) for value in values]
