"""A traced sentence, and its form as a JSON object; docs/inspection.md describes the fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqgen.lab.traces.header import Fields
from seqgen.lab.traces.step import SHORT, StepTrace, TracedSteps, rounded, significant


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
        record: dict[str, Any] = {"text": self.text, "tokens": list(self.tokens), "score": rounded(self.score, digits)}
        record["scores"] = significant(self.scores, digits)
        if self.members:
            record["members"] = [significant(member, SHORT) for member in self.members]
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
class SentenceTrace(TracedSteps):
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

    def before(self, step: int, beam: int) -> float:
        """The cumulative score of a beam before a step."""
        if not step:
            return 0.0
        rank = self.steps[step - 1].next[beam]
        return self.steps[step - 1].scores[rank] if rank >= 0 else float("-inf")

    def record(self, digits: int, candidates: int = 0) -> dict[str, Any]:
        """The sentence as a JSON object.

        Args:
            digits: significant digits of scores.
            candidates: number of candidates of each step that are kept besides those that survive; 0 for all.
        """
        record: dict[str, Any] = {"id": self.id, "source": self.source, "source_pieces": list(self.source_pieces)}
        steps = [step.kept(candidates) for step in self.steps]
        record["steps"] = [step.record(digits) for step in steps]
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
        pieces, steps = fields.texts("source_pieces"), list[StepTrace]()
        for number, item in enumerate(fields.list("steps")):
            steps.append(StepTrace.of(Fields(item, f"step {number}"), beam, members, steps[-1] if steps else None))
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


def _used_tokens(steps: Sequence[StepTrace], outputs: Sequence[TracedOutput]) -> Iterator[int]:
    for step in steps:
        yield from step.tokens
        yield from (item.token for item in step.forbidden)
    for output in outputs:
        yield from output.tokens
