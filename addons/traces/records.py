"""The records of a trace: header, sentences, steps and outputs; docs/inspection.md describes their fields in JSON."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from seqgen.decoding.rules import RULES
from seqgen.extend import Outcome, Ranking

R = TypeVar("R")
FORMAT, VERSION = "seqgen-trace", 1
"""The first two values of a trace."""
SHORT = {"digits": 5}
"""Values that need not be exact: members' scores."""
_LARGEST = 2**62
"""Larger integers do not fit into a tensor."""
_HIGHEST = 1e30
"""Larger numbers, positive or negative, are not scores or weights."""
_MOST_BEAMS = 100_000

OUTCOMES = {
    "C": Outcome.CONTINUES,
    "F": Outcome.FINISHED,
    "B": Outcome.BELOW_BEAM,
    "E": Outcome.ENDED_TOO_LOW,
    "I": Outcome.IMPOSSIBLE,
}
"""The outcomes by their letters; steps after the end of a sentence are not recorded."""
LETTERS = {outcome: letter for letter, outcome in OUTCOMES.items()}


class Damaged(ValueError):
    """A record is damaged: a value is missing, or does not fit."""


def plain(value: Any, digits: int) -> Any:
    """A record, or a value of one, as JSON; optional fields that are empty are left out.

    Args:
        value: the value.
        digits: significant digits of numbers; a field can declare fewer. Minus infinity is null.
    """
    if isinstance(value, float):
        return None if value == -math.inf else float(f"{value:.{digits}g}")
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return [[key, plain(item, digits)] for key, item in value.items()]
    if isinstance(value, Sequence):
        return [plain(item, digits) for item in value]
    return {
        item.name: plain(getattr(value, item.name), item.metadata.get("digits", digits))
        for item in dataclasses.fields(value)
        if getattr(value, item.name) or not _is_optional(item)
    }


def read(kind: type[R], value: Any, where: str) -> R:
    """A record from untrusted JSON.

    Args:
        kind: its class.
        value: the JSON object.
        where: what the object is, for messages.

    Raises:
        Damaged: it is not an object, or a field is missing or has another type.
    """
    if not isinstance(value, dict):
        raise Damaged(f"{where} is not an object")
    found, annotations = {}, _annotations(typing.cast(Any, kind))
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        if item.name in value:
            try:
                found[item.name] = _value(annotations[item.name], value[item.name], f"the {item.name}")
            except Damaged:
                raise
            except (TypeError, ValueError):
                raise Damaged(f"{where} has a wrong {item.name}") from None
        elif not _is_optional(item):
            raise Damaged(f"{where} has no {item.name}")
    return kind(**found)


def _is_optional(item: dataclasses.Field[Any]) -> bool:
    return item.default in (None, ()) or item.default_factory is dict


@functools.cache
def _annotations(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as a type; null is minus infinity where a number is expected.

    Raises:
        TypeError, ValueError: it has another type.
    """
    if kind is float:
        if value is None:
            return -math.inf
        if type(value) in (int, float) and abs(value) <= _HIGHEST:  # false for NaN, too
            return float(value)
    elif kind in (str, bool, int):
        if type(value) is kind and (kind is not int or -1 <= value < _LARGEST):
            return value
    elif dataclasses.is_dataclass(kind):
        return read(typing.cast(Any, kind), value, where)
    elif isinstance(kind, types.UnionType):
        return None if value is None else _value(typing.get_args(kind)[0], value, where)
    elif typing.get_origin(kind) is Mapping:
        _, kind = typing.get_args(kind)
        pairs = [(int(key), item) for key, item in value.items()] if isinstance(value, dict) else value
        return {_value(int, key, where): _value(kind, item, where) for key, item in pairs}
    elif isinstance(value, list) and typing.get_origin(kind) is Sequence:
        (kind,) = typing.get_args(kind)
        name = _NOUNS.get(kind, where)
        return [_value(kind, item, name.format(number)) for number, item in enumerate(value)]
    elif isinstance(value, list):
        columns = _annotations(kind).values()  # of a named tuple
        return kind(*(_value(column, item, where) for column, item in zip(columns, value, strict=True)))
    raise TypeError


def _check(valid: bool, what: str) -> None:
    if not valid:
        raise Damaged(what)


@dataclass(frozen=True)
class TraceHeader:
    """The settings of a traced decode.

    Attributes:
        seqgen: version of the program.
        models: names of the models.
        members: number of members of the ensemble.
        search: class name of the search strategy.
        rules: name of the rules.
        beam: beams of each sentence.
        nbest: length of the n-best lists.
        dtype: dtype of scores.
        ranking: how cumulative scores become scores of hypotheses.
        early_stopping: see ``BestFinished``.
        seed: the seed of a random strategy; ``None`` for another one.
        processors: class names of the logits processors.
        recorded: the optional parts that were recorded.
        candidates: number of candidates kept besides those that survive; 0 for all.
    """

    seqgen: str
    models: Sequence[str]
    members: int
    search: str
    rules: str
    beam: int
    nbest: int
    dtype: str
    ranking: Ranking
    early_stopping: str
    seed: int | None
    processors: Sequence[str]
    recorded: Sequence[str]
    candidates: int

    @classmethod
    def of(cls, value: Any) -> TraceHeader:
        """Read a JSON object.

        Raises:
            ValueError: a field is missing or wrong.
        """
        header = read(cls, value, "its first line")
        _check(header.rules in RULES, "its first line has wrong rules")
        _check(header.dtype in ("float32", "float64"), "its first line has a wrong dtype")
        _check(1 <= header.beam <= _MOST_BEAMS, f"its first line has {header.beam} beams")
        _check(header.members >= 1, f"its first line has {header.members} members")
        _check(math.isfinite(header.ranking.coverage), "the ranking has a wrong coverage")
        return header

    @property
    def digits(self) -> int:
        """Significant digits of scores, which suffice to read the same number again."""
        return 17 if self.dtype == "float64" else 9


class ForbiddenToken(NamedTuple):
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
    done: bool
    finished: Mapping[int, float] = field(default_factory=dict)
    members: Sequence[Sequence[float]] = field(default=(), metadata=SHORT)
    forbidden: Sequence[ForbiddenToken] = field(default=(), metadata=SHORT)

    def survives(self, rank: int) -> bool:
        """True if a candidate continues or finishes."""
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

    def check(self, where: str, beam: int, members: int, before: StepTrace | None) -> None:
        """Check that the values fit each other and the step before.

        Raises:
            Damaged: a value does not fit.
        """
        count = len(self.tokens)
        for name, columns in (("scores", [self.scores]), ("beams", [self.beams]), ("members", self.members)):
            _check(all(len(column) == count for column in columns), f"{where} has wrong {name}")
        _check(len(self.members) in (0, members), f"{where} has wrong members")
        numbers: dict[str, tuple[Iterable[int], int]]
        numbers = {"beams": (self.beams, beam), "finished": (self.finished, count)}
        numbers["forbidden"] = [item.beam for item in self.forbidden], beam
        for name, (values, end) in numbers.items():
            _check(all(0 <= value < end for value in values), f"{where} has wrong {name}")
        _check(len(self.outcomes) == count and {*self.outcomes} <= {*OUTCOMES}, f"{where} has wrong outcomes")
        _check(len(self.next) == beam and all(rank < count for rank in self.next), f"{where} has a wrong next")
        continues = all(self.outcomes[rank] == "C" for rank in self.next if rank >= 0)
        _check(continues, f"{where} has a beam that does not continue")
        if before is not None:
            _check(not before.done, f"{where} comes after the step that ended the sentence")
            pairs = zip(self.outcomes, self.beams, strict=True)
            exist = all(before.next[parent] >= 0 for letter, parent in pairs if letter != "I")
            _check(exist, f"{where} continues a beam that does not exist")


class TracedSteps:
    """The paths of candidates through the steps of a sentence.

    Attributes:
        steps: from the first step to the one that finished the sentence.
    """

    steps: Sequence[StepTrace]

    def tokens(self, step: int, rank: int) -> list[int]:
        """The tokens of a candidate, the newest included."""
        found = [self.steps[step].tokens[rank]]
        while step and (rank := self.steps[step - 1].next[self.steps[step].beams[rank]]) >= 0:
            step -= 1
            found.append(self.steps[step].tokens[rank])
        return found[::-1]


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
    members: Sequence[Sequence[float]] = field(default=(), metadata=SHORT)
    attention: Sequence[Sequence[float]] | None = field(default=None, metadata={"digits": 3})
    search_scores: Sequence[float] = ()

    def check(self, where: str, sources: int, may_lack_scores: bool = False) -> None:
        """Check that the values fit each other and the number of source tokens.

        Raises:
            Damaged: a value does not fit.
        """
        count = len(self.tokens)
        _check(len(self.scores) == count or (may_lack_scores and not self.scores), f"{where} has wrong scores")
        _check(all(len(member) == count for member in self.members), f"{where} has wrong members")
        if (rows := self.attention) is not None:
            fits = len(rows) == count and all(len(row) == sources and all(map(math.isfinite, row)) for row in rows)
            _check(fits, f"{where} has wrong attention")


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
    notes: Sequence[str] = ()

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
        kept = dataclasses.replace(self, steps=[step.kept(candidates) for step in self.steps], pieces={})
        pieces = {str(token): self.piece(token) for token in sorted({*kept.used_tokens()})}
        return {**plain(kept, digits), "pieces": pieces}

    @classmethod
    def of(cls, value: Any, beam: int, members: int) -> SentenceTrace:
        """Read a JSON object.

        Args:
            value: the object.
            beam: beams of the search.
            members: members of the ensemble.

        Raises:
            Damaged: a field is missing or wrong.
        """
        found = read(cls, value, "the record")
        for number, step in enumerate(found.steps):
            step.check(f"step {number}", beam, members, found.steps[number - 1] if number else None)
        for item in found.hypotheses:
            item.check("a hypothesis", len(found.source_pieces))
        if found.reference is not None:
            found.reference.check("the reference", len(found.source_pieces), True)
        for token in found.used_tokens():
            _check(token in found.pieces, f"its pieces do not have token {token}")
        return found

    def used_tokens(self) -> Iterator[int]:
        """The tokens of all candidates, forbidden continuations and outputs."""
        for step in self.steps:
            yield from step.tokens
            yield from (item.token for item in step.forbidden)
        for output in (*self.hypotheses, *([self.reference] if self.reference else [])):
            yield from output.tokens


_NOUNS = {StepTrace: "step {}", TracedOutput: "a hypothesis"}
"""Names of records in a list, for messages."""
