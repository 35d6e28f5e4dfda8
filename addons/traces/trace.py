"""A trace and its records: header, sentences, steps and outputs; docs/inspection.md describes their fields in JSON."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import math
import os
import types
import typing
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from seqgen.extend import ConfigError, DataError, Outcome, Ranking, open_regular, parse_json, shown

FORMAT, VERSION = "seqgen-trace", 2
"""The first two values of a trace."""
SHORT = {"digits": 5}
"""Values that need not be exact: members' scores."""

OUTCOMES = {
    "C": Outcome.CONTINUES,
    "F": Outcome.FINISHED,
    "B": Outcome.BELOW_BEAM,
    "E": Outcome.ENDED_TOO_LOW,
    "I": Outcome.IMPOSSIBLE,
}
"""The outcomes by their letters; steps after the end of a sentence are not recorded."""
LETTERS = {outcome: letter for letter, outcome in OUTCOMES.items()}


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


def _is_optional(item: dataclasses.Field[Any]) -> bool:
    return item.default in (None, ()) or item.default_factory is dict


def read(kind: Any, value: Any) -> Any:
    """A record, or a value of one, from JSON that ``plain`` has made.

    Args:
        kind: its class, or the type of the value.
        value: the JSON.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is float:
        return -math.inf if value is None else float(value)
    if isinstance(kind, types.UnionType):
        return None if value is None else read(arguments[0], value)
    if origin is Mapping:
        pairs = value.items() if isinstance(value, dict) else value
        return {int(key): read(arguments[1], item) for key, item in pairs}
    if origin is Sequence:
        return [read(arguments[0], item) for item in value]
    if isinstance(value, dict):  # of a dataclass
        types_of = _annotations(kind)
        return kind(**{name: read(types_of[name], item) for name, item in value.items() if name in types_of})
    return kind(*map(read, _annotations(kind).values(), value)) if isinstance(value, list) else value


@functools.cache
def _annotations(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


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
        tokens = {token for step in kept.steps for token in (*step.tokens, *(item.token for item in step.forbidden))}
        tokens.update(*(output.tokens for output in (*self.hypotheses, self.reference) if output is not None))
        return {**plain(kept, digits), "pieces": {str(token): self.piece(token) for token in sorted(tokens)}}


_RATIO, _SMALL = 100, 1 << 22
"""Maximum ratio of the unpacked to the packed size of a ``.gz`` trace larger than the second number of bytes; real
ones have ratios of 5 to 20."""


class Trace:
    """A trace that ``seqgen-generate trace=FILE`` has written::

        trace = seqgen.Trace("trace.jsonl.gz")
        trace[0].hypotheses[0].text

    Args:
        path: the file.

    Attributes:
        header: the settings of the decode.
        sentences: the traced lines, in their order.
        complete: whether all lines were traced; otherwise ``trace_options.sentences`` or ``max_megabytes`` ended the
            trace.

    Raises:
        DataError: the file cannot be read, is no trace, is damaged, or has another version.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        content = self._content()
        body, _, last = content.rstrip(b"\n").rpartition(b"\n")
        first, end = (_parsed(line) for line in (content.partition(b"\n")[0], last))
        if first.get("format") != FORMAT:
            raise DataError(f"{self.path} is not a trace of seqgen-generate; write one with trace=FILE")
        if (version := first.get("version")) != VERSION:
            raise DataError(
                f"{self.path} is a trace of version {shown(version)}; this seqgen reads version {VERSION}; decode "
                "again, or use another seqgen"
            )
        if "end" not in end:
            raise DataError(
                f"the trace {self.path} is incomplete: the decode that wrote it was interrupted; run it again"
            )
        if end.get("crc32") != zlib.crc32(b"\n", zlib.crc32(body)):
            raise self._damaged("its checksum is not that of its content")
        with self.wrong_values():
            header, *records = map(parse_json, body.split(b"\n"))
            self.header: TraceHeader = read(TraceHeader, header)
            self.sentences: list[SentenceTrace] = [read(SentenceTrace, record) for record in records]
            self.complete: bool = end["complete"]
            self._by_id = {sentence.id: sentence for sentence in self.sentences}

    @contextmanager
    def wrong_values(self) -> Iterator[None]:
        """Turn what values of a wrong kind raise, which only a forged file has, into a ``DataError``."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, ConfigError):
            raise self._damaged("it has values that seqgen-generate does not write") from None

    def __len__(self) -> int:
        return len(self.sentences)

    def __iter__(self) -> Iterator[SentenceTrace]:
        return iter(self.sentences)

    def __getitem__(self, line: int) -> SentenceTrace:
        """The trace of a line, by its number from 0.

        Raises:
            KeyError: the line was not traced.
        """
        return self._by_id[line]

    def _content(self) -> bytes:
        """The unpacked file."""
        try:
            with open_regular(self.path) as raw:
                if raw.peek(2)[:2] != b"\x1f\x8b":
                    return raw.read()
                limit = max(_SMALL, _RATIO * os.fstat(raw.fileno()).st_size)
                content = gzip.GzipFile(fileobj=raw).read(limit + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise self._damaged("it is not a whole gzip file") from None
        except OSError as error:
            raise DataError(f"the trace {self.path} cannot be read: {error.strerror or error}") from None
        if len(content) > limit:
            raise DataError(
                f"the trace {self.path} unpacks to more than {limit} bytes, far more than its own; unpack it with "
                "gunzip if you trust it"
            )
        return content

    def _damaged(self, why: str) -> DataError:
        return DataError(f"the trace {self.path} is damaged: {why}; write it again")


def _parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; empty if it is none."""
    try:
        record = parse_json(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
