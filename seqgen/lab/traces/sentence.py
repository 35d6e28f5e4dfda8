"""The trace of one sentence, and its form as a JSON object; docs/inspection.md describes the fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from seqgen.generation.observers import Outcome
from seqgen.lab.traces.header import Fields
from seqgen.lab.traces.line_trace import ForbiddenToken, StepTrace

LETTERS: dict[int, str] = {
    Outcome.CONTINUES: "C",
    Outcome.FINISHED: "F",
    Outcome.BELOW_BEAM: "B",
    Outcome.ENDED_TOO_LOW: "E",
    Outcome.IMPOSSIBLE: "I",
}
"""The letter of each outcome in a file; steps after the end of a sentence are not recorded."""

_OUTCOMES = {letter: outcome for outcome, letter in LETTERS.items()}
_SHORT = 5
"""Significant digits of values that need not be exact: members' scores and attention."""


@dataclass(frozen=True)
class TracedOutput:
    """A hypothesis or a reference.

    Attributes:
        text: its text.
        tokens: its ids, end-of-sentence included.
        score: the score that ranks it; for a reference, the score that the models give it without processors.
        scores: the log-probability of each token in nats; with processors for a hypothesis, without for a reference,
            whose scores are empty if they were not computed.
        members: for each member of an ensemble the log-probabilities of the tokens, for a reference.
        attention: for each token its attention over the source tokens; ``None`` if not recorded.
        search_scores: for a reference, its cumulative score in the search at each step, up to the one at which it was
            dropped; ``-inf`` where a processor forbids it.
    """

    text: str
    tokens: Sequence[int]
    score: float
    scores: Sequence[float]
    members: Sequence[Sequence[float]] = ()
    attention: Sequence[Sequence[float]] | None = None
    search_scores: Sequence[float] = ()

    def record(self, digits: int) -> dict[str, Any]:
        """The output as a JSON object, its scores with so many significant digits."""
        record: dict[str, Any] = {"text": self.text, "tokens": list(self.tokens), "score": _rounded(self.score, digits)}
        record["scores"] = significant(self.scores, digits)
        if self.members:
            record["members"] = [significant(member, _SHORT) for member in self.members]
        if self.search_scores:
            record["search_scores"] = significant(self.search_scores, digits)
        if self.attention is not None:
            record["attention"] = [significant(row, 3) for row in self.attention]
        return record

    @classmethod
    def of(cls, fields: Fields, sources: int, may_lack_scores: bool = False) -> TracedOutput:
        """Read a JSON object.

        Args:
            fields: the object.
            sources: number of source tokens.
            may_lack_scores: whether it is a reference, which may have no scores.

        Raises:
            ValueError: a field is missing or wrong.
        """
        tokens = fields.integers("tokens")
        attention = fields.rows("attention", len(tokens), sources) if "attention" in fields.values else None
        return cls(
            fields.text("text"),
            tokens,
            fields.score("score"),
            fields.scores("scores", len(tokens) if fields.list("scores") or not may_lack_scores else 0),
            fields.score_rows("members", None, len(tokens)) if "members" in fields.values else (),
            attention,
            fields.scores("search_scores") if "search_scores" in fields.values else (),
        )


@dataclass(frozen=True)
class SentenceTrace:
    """The decode of one line.

    Attributes:
        id: number of the line, from 0.
        source: the line.
        source_pieces: the source tokens as the first model reads them, as text.
        steps: from the first step to the one that finished the sentence.
        hypotheses: the n-best list.
        pieces: the text of each target token that occurs.
        reference: the reference; ``None`` if none was given.
        notes: what the decode noted about the line.
    """

    id: int
    source: str
    source_pieces: Sequence[str]
    steps: Sequence[StepTrace]
    hypotheses: Sequence[TracedOutput]
    pieces: Mapping[int, str]
    reference: TracedOutput | None = None
    notes: Sequence[str] = field(default_factory=list)

    def piece(self, token: int) -> str:
        """The text of a token; its id in brackets if the trace does not have it."""
        return self.pieces.get(token, f"<{token}>")

    @cached_property
    def survivors(self) -> list[list[int]]:
        """What ``next_ranks`` returns for each step."""
        return [next_ranks(step) for step in self.steps]

    def path(self, step: int, rank: int) -> list[tuple[int, int]]:
        """The candidates that lead to a candidate, itself included: pairs of step and rank, the oldest first."""
        found = [(step, rank)]
        while step:
            rank = self.survivors[step - 1][int(self.steps[step].beams[rank])]
            if rank < 0:
                break
            step -= 1
            found.append((step, rank))
        return found[::-1]

    def tokens(self, step: int, rank: int) -> list[int]:
        """The tokens of a candidate, the newest included."""
        return [int(self.steps[s].tokens[r]) for s, r in self.path(step, rank)]

    def before(self, step: int, beam: int) -> float:
        """The cumulative score of a beam before a step."""
        if not step:
            return 0.0
        rank = self.survivors[step - 1][beam]
        return float(self.steps[step - 1].scores[rank]) if rank >= 0 else float("-inf")

    def record(self, digits: int, candidates: int = 0) -> dict[str, Any]:
        """The sentence as a JSON object.

        Args:
            digits: significant digits of scores.
            candidates: number of candidates of each step that are kept besides those that survive; 0 for all.
        """
        record: dict[str, Any] = {"id": self.id, "source": self.source, "source_pieces": list(self.source_pieces)}
        record["max_length"] = self.steps[0].max_length if self.steps else 0
        steps = [_kept(step, candidates) for step in self.steps]
        record["steps"] = [_step_record(step, digits) for step in steps]
        record["hypotheses"] = [item.record(digits) for item in self.hypotheses]
        if self.reference is not None:
            record["reference"] = self.reference.record(digits)
        if self.notes:
            record["notes"] = list(self.notes)
        used = set(_used_tokens(steps, [*self.hypotheses, *([self.reference] if self.reference else [])]))
        record["pieces"] = {str(token): self.piece(token) for token in sorted(used)}
        return record

    @classmethod
    def of(cls, value: Any, beam: int, members: int) -> SentenceTrace:
        """Read a JSON object.

        Args:
            value: the object.
            beam: beams of the search.
            members: members of the ensemble.

        Raises:
            ValueError: a field is missing or wrong.
        """
        fields = Fields(value)
        limit, pieces = fields.integer("max_length"), fields.texts("source_pieces")
        steps: list[StepTrace] = []
        for number, item in enumerate(fields.list("steps")):
            step = Fields(item, f"step {number}")
            if steps and steps[-1].done:
                raise ValueError(f"{step.where} comes after the step that ended the sentence")
            steps.append(_step_of(step, beam, members, limit, steps[-1] if steps else None))
        count = len(pieces)
        hypotheses = [TracedOutput.of(Fields(item, "a hypothesis"), count) for item in fields.list("hypotheses")]
        reference = None
        if "reference" in value:
            reference = TracedOutput.of(Fields(value["reference"], "the reference"), count, True)
        texts = {int(key): text for key, text in fields.texts_by_number("pieces").items()}
        for token in _used_tokens(steps, [*hypotheses, *([reference] if reference else [])]):
            if token not in texts:
                raise ValueError(f"its pieces do not have token {token}")
        notes = fields.texts("notes") if "notes" in value else []
        return cls(fields.integer("id"), fields.text("source"), pieces, steps, hypotheses, texts, reference, notes)


def next_ranks(step: StepTrace) -> list[int]:
    """For each beam of the next step the rank of the candidate that it is; -1 for a beam that does not exist."""
    continues = (step.outcomes == Outcome.CONTINUES).tolist()
    ranks: dict[tuple[int, int], list[int]] = defaultdict(list)  # two groups of beams can have the same continuation
    for rank, pair in enumerate(zip(step.beams.tolist(), step.tokens.tolist(), strict=True)):
        if continues[rank]:
            ranks[pair].append(rank)
    active = zip(step.active_beams.tolist(), step.active_tokens.tolist(), strict=True)
    return [ranks[pair].pop(0) if ranks.get(pair) else -1 for pair in active]


def _kept(step: StepTrace, count: int) -> StepTrace:
    """The step with its first ``count`` candidates and those that survive; all for 0."""
    exists = step.scores > -torch.inf
    if not count and bool(exists.all()):
        return step
    keep = torch.arange(len(step.scores)) <= (exists.nonzero().max() if exists.any() else -1)
    if count:
        keep &= step.survives | ((torch.arange(len(keep)) < count) & exists)
    if bool(keep.all()):
        return step
    names = ("scores", "tokens", "beams", "outcomes", "hypothesis_scores")
    values: dict[str, Any] = {name: getattr(step, name)[keep] for name in names}
    values["members"] = None if step.members is None else step.members[:, keep]
    return StepTrace(**{**vars(step), **values})


def _step_record(step: StepTrace, digits: int) -> dict[str, Any]:
    record: dict[str, Any] = {
        "scores": significant(step.scores.tolist(), digits),
        "tokens": step.tokens.tolist(),
        "beams": step.beams.tolist(),
        "outcomes": "".join(map(LETTERS.__getitem__, step.outcomes.tolist())),
        "next": next_ranks(step),
        "done": step.done,
    }
    final = step.hypothesis_scores.tolist()
    if finished := [[rank, _rounded(score, digits)] for rank, score in enumerate(final) if score > float("-inf")]:
        record["finished"] = finished
    if step.members is not None:
        record["members"] = [significant(member, _SHORT) for member in step.members.tolist()]
    if step.forbidden:
        record["forbidden"] = [[x.beam, x.token, _rounded(x.lprob, _SHORT), x.by] for x in step.forbidden]
    return record


def _step_of(fields: Fields, beam: int, members: int, limit: int, before: StepTrace | None) -> StepTrace:
    tokens = fields.integers("tokens")
    count = len(tokens)
    beams, scores = fields.integers("beams", count, beam), fields.scores("scores", count)
    letters, ranks = fields.text("outcomes"), fields.integers("next", beam, count, lowest=-1)
    if len(letters) != count or set(letters) - set(_OUTCOMES):
        raise ValueError(f"{fields.where} has wrong outcomes")
    if before is not None:
        beams_before = next_ranks(before)
        letters_of = zip(letters, beams, strict=True)
        if any(beams_before[parent] < 0 for letter, parent in letters_of if letter != "I"):
            raise ValueError(f"{fields.where} continues a beam that does not exist")
    if any(letters[rank] != "C" for rank in ranks if rank >= 0):
        raise ValueError(f"{fields.where} has a beam that does not continue")
    final = torch.full((count,), -torch.inf, dtype=torch.float64)
    for rank, score in fields.pairs("finished", count) if "finished" in fields.values else ():
        final[rank] = score
    of_members = fields.score_rows("members", members, count) if "members" in fields.values else None
    missing = [rank < 0 for rank in ranks]
    return StepTrace(
        done=fields.flag("done"),
        scores=torch.tensor(scores, dtype=torch.float64),
        tokens=_ids(tokens),
        beams=_ids(beams),
        outcomes=_ids([_OUTCOMES[letter] for letter in letters]),
        hypothesis_scores=final,
        active_tokens=_ids([-1 if gone else tokens[rank] for rank, gone in zip(ranks, missing, strict=True)]),
        active_beams=_ids([0 if gone else beams[rank] for rank, gone in zip(ranks, missing, strict=True)]),
        max_length=limit,
        members=None if of_members is None else torch.tensor(of_members, dtype=torch.float64),
        forbidden=_forbidden_of(fields, beam) if "forbidden" in fields.values else (),
    )


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


def _used_tokens(steps: Sequence[StepTrace], outputs: Sequence[TracedOutput]) -> Iterator[int]:
    for step in steps:
        yield from step.tokens.tolist()
        yield from (item.token for item in step.forbidden)
    for output in outputs:
        yield from output.tokens


def _ids(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _rounded(value: float, digits: int) -> float | None:
    return None if value == float("-inf") else float(f"{value:.{digits}g}")


def significant(values: Sequence[float], digits: int) -> list[float | None]:
    """The values with so many significant digits; ``None``, which is null in JSON, for minus infinity."""
    return [_rounded(value, digits) for value in values]
