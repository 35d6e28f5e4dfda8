"""Decodes of lines that record every step; the first difference between two of them, and its cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from seqgen import Translator
from seqgen.addons.traces.recorder import Tracer
from seqgen.addons.traces.trace import StepTrace, TracedSteps
from seqgen.config import ResolvedSettings, TraceConfig
from seqgen.extend import ConfigError, Dictionary, TextHypothesis, TextModel, UserError, has_steps

Lines: TypeAlias = Mapping[int, tuple[str, str]]
"""Consecutive lines of the input by their number, from 0: each with the forced beginning of its output."""


@dataclass(frozen=True)
class LineTrace(TracedSteps):
    """The decode of one line.

    Attributes:
        steps: from the first step to the one that finished the sentence. Empty for an empty line, and for a strategy
            whose own loop does not call observers.
        hypotheses: the n-best list.
    """

    steps: Sequence[StepTrace]
    hypotheses: Sequence[TextHypothesis]


class InspectedModels:
    """Models that decode the same lines several times, with different settings.

    Args:
        load: loads the models; called once for each dtype, because models are converted in place.
    """

    def __init__(self, load: Callable[[], Sequence[TextModel]]):
        self.load = load
        self.translators: dict[str, Translator] = {}

    def translator(self, dtype: str) -> Translator:
        """The models in a dtype.

        Raises:
            ConfigError: the models have different target vocabularies.
        """
        if dtype not in self.translators:
            translator = Translator(list(self.load()), dtype=dtype)
            if not translator.shares_vocabulary:
                raise ConfigError(
                    "the steps of members with different target vocabularies cannot be recorded; give models with the "
                    "same target vocabulary"
                )
            self.translators[dtype] = translator
        return self.translators[dtype]

    def resolve(self, given: Mapping[str, Any]) -> ResolvedSettings:
        """Complete the settings of the user by those of the models.

        Args:
            given: the settings of the user, by whole key.

        Raises:
            ConfigError: settings exclude each other.
        """
        dtype = given.get("generation.dtype", "").replace("float32", "")  # the same models as without the key
        return self.translator(dtype).resolve({**given, "generation.dtype": dtype})

    def decode(self, values: Mapping[str, Any], lines: Lines) -> dict[int, LineTrace]:
        """Decode lines together to whole n-best lists, and record every step.

        Args:
            values: the values of all keys, by whole key.
            lines: the lines.

        Returns:
            The trace of each line, by its number.

        Raises:
            ConfigError: settings exclude each other.
        """
        translator = self.translator(values["generation.dtype"])
        setup = translator.prepare(**values).generator.setup
        whole = {**values, "generation.nbest": min(setup.beam_size, values["generation.beam"])}
        tracer = Tracer(TraceConfig(sentences=0, members=False, forbidden=False), setup, lambda number: ())
        if has_steps(setup.search):
            whole["generation.observers"] = [*values["generation.observers"], tracer]
        texts, prefixes = zip(*lines.values(), strict=True)
        found = translator.prepare(**whole).translate(texts, prefixes, len(lines), lines)
        return {item.id: LineTrace(tracer.steps(item.id), item.hypotheses) for item in found}


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ; a key that only one of the two has is among them."""
    return [key for key in dict.fromkeys((*one, *other)) if one.get(key) != other.get(key)]


TOKEN = "token"
PARENT = "beam that it continues"
SCORE = "cumulative score"
OUTCOME = "outcome"
HYPOTHESIS_SCORE = "score of the finished hypothesis"
DONE = "whether the sentence is done"
LENGTH = "number of hypotheses"


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
        beams: list[list[tuple[int, ...]]] = [[()] * (1 + max(trace.steps[0].beams)) for trace in (one, other)]
        for step in range(max(len(one.steps), len(other.steps))):
            if step >= min(len(one.steps), len(other.steps)):
                return Difference(step, 0, DONE, float("inf"))
            a, b = (_Candidates(x.steps[step], known) for x, known in zip((one, other), beams, strict=True))
            if found := _in_step(step, a, b, tolerance):
                return found
            beams = [a.next_beams(), b.next_beams()]
    return nbest_difference(one.hypotheses, other.hypotheses, tolerance)


class _Candidates:
    """The candidates of a step, with their token sequences.

    Args:
        step: the step.
        beams: the tokens of each beam.
    """

    def __init__(self, step: StepTrace, beams: Sequence[tuple[int, ...]]):
        self.step, self.beams = step, beams
        self.ids = [(*beams[beam], token) for beam, token in zip(step.beams, step.tokens, strict=True)]

    def next_beams(self) -> list[tuple[int, ...]]:
        """The tokens of each beam of the next step; none for a beam that does not exist."""
        return [self.ids[rank] if rank >= 0 else () for rank in self.step.next]

    def rank_of(self, rank: int, other: _Candidates, tolerance: float) -> int:
        """The rank here of the other's sequence at ``rank``, if the two at ``rank`` tie; else ``rank``."""
        wanted = other.ids[rank]
        if self.ids[rank] == wanted or wanted not in self.ids:
            return rank
        found = self.ids.index(wanted)
        return found if _gap(self.step.scores[found], self.step.scores[rank]) <= tolerance else rank

    def may_hold(self, other: _Candidates, rank: int, tolerance: float) -> bool:
        """True if the sequence at ``rank`` of ``other`` has, or can have, the same score here."""
        wanted, score = other.ids[rank], other.step.scores[rank]
        if wanted in self.ids:
            return _gap(self.step.scores[self.ids.index(wanted)], score) <= tolerance
        return self.step.scores[-1] >= score - tolerance  # it may rank just below the last candidate


def _in_step(step: int, one: _Candidates, other: _Candidates, tolerance: float) -> Difference | None:
    for rank in range(max(len(one.ids), len(other.ids))):
        for left, right in ((one, other), (other, one)):
            if rank < len(left.ids) and left.step.survives(rank):
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
        what = TOKEN if one.ids[rank][-1] != other.ids[at][-1] else PARENT
        tie = size <= tolerance and one.may_hold(other, at, tolerance) and other.may_hold(one, rank, tolerance)
        return Difference(step, rank, what, size, tie)
    if size > tolerance:
        return Difference(step, rank, SCORE, size)
    if one.step.outcomes[rank] != other.step.outcomes[at]:
        return Difference(step, rank, OUTCOME, size, tie=at != rank)
    finals = (x.finished.get(r, float("-inf")) for x, r in ((one.step, rank), (other.step, at)))
    if (size := _gap(*finals)) > tolerance:
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
        size = _gap(a.score, b.score)
        if a.tokens.tolist() != b.tokens.tolist():
            return Difference(None, rank, TOKEN, size, tie=size <= tolerance)
        if size > tolerance:
            return Difference(None, rank, SCORE, size)
    return None


def _gap(one: float, other: float) -> float:
    return 0.0 if one == other else abs(one - other)  # -inf - -inf is NaN


@dataclass(frozen=True)
class Decode:
    """A decode that is compared with another.

    Attributes:
        models: the models.
        settings: the settings.
    """

    models: InspectedModels
    settings: ResolvedSettings

    @property
    def dictionary(self) -> Dictionary:
        """The target vocabulary."""
        return self.models.translator(self.settings.generation.dtype).task.target_dictionary


def keys_of_difference(
    first: Decode, other: Decode, lines: Lines, line: int, difference: Difference, tolerance: float
) -> list[str]:
    """Find the keys that cause a difference, by decoding with the first models and values of the other decode.

    Args:
        first: the first decode.
        other: the other decode.
        lines: the lines that are decoded together.
        line: number of the line that differs.
        difference: its first difference.
        tolerance: scores that differ by at most this value count as equal, in nats.

    Returns:
        The first key with whose value from the other decode the first one agrees with it up to and including the step,
        or a set of keys from which none can be left out. Empty if the decodes differ with all values of the other
        decode, so that the models cause the difference.
    """
    one, two = first.settings.values, other.settings.values
    wanted = other.models.decode(two, lines)[line]

    def agrees(keys: Sequence[str]) -> bool:
        try:
            values = {key: value for key, value in one.items() if key not in keys}
            values |= {key: two[key] for key in keys if key in two}
            changed = first.models.decode(values, lines)[line]
        except UserError:
            return False  # the values exclude each other
        found = first_difference(changed, wanted, tolerance)
        if found is None or difference.step is None:
            return found is None
        return found.step is None or found.step > difference.step

    # use_cache=false makes the other switches of the cache ineffective, so it is tried after these narrower ones
    keys = sorted(differing_keys(one, two), key=lambda key: key == "fast.use_cache")
    if not keys or not agrees(keys):
        return []
    if alone := next((key for key in keys if agrees([key])), ""):
        return [alone]
    for key in list(keys):
        if len(keys) > 1 and agrees(rest := [item for item in keys if item != key]):
            keys = rest
    return keys
