"""Decodes of lines that record every step; the first difference between two of them, and its cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from seqgen.config.settings import ResolvedSettings
from seqgen.data.dictionary import Dictionary
from seqgen.errors import ConfigError, UserError
from seqgen.generation.search.exact import ExactSearch
from seqgen.lab.traces.line_trace import LineTrace, ModelScores, Probe, Recorder
from seqgen.lab.traces.step import StepTrace
from seqgen.text.languages import TextModel
from seqgen.text.results import Details, TextHypothesis, Translation
from seqgen.text.text_decoding import TextDecoding
from seqgen.text.translator import Translator


@dataclass(frozen=True)
class Lines:
    """Consecutive lines of the input.

    Attributes:
        first: number of the first line, from 0.
        texts: the lines.
        prefixes: the forced beginning of each output; ``None`` for no forced beginnings.
    """

    first: int
    texts: Sequence[str]
    prefixes: Sequence[str] | None = None


class InspectedModels:
    """Models that decode the same lines several times, with different settings.

    Args:
        load: loads the models; called once for each dtype, because models are converted in place.
    """

    def __init__(self, load: Callable[[], Sequence[TextModel]]):
        self.load = load
        self.translators: dict[str, Translator] = {}

    def translator(self, dtype: str) -> Translator:
        """The models in a dtype; ``""`` means float32.

        Raises:
            ConfigError: the models have different target vocabularies.
        """
        dtype = "" if dtype == "float32" else dtype
        if dtype not in self.translators:
            translator = Translator(list(self.load()), dtype=dtype)
            if translator.by_agreement:
                raise ConfigError(
                    "the steps of members with different target vocabularies cannot be recorded; give models with the "
                    "same target vocabulary"
                )
            self.translators[dtype] = translator
        return self.translators[dtype]

    def resolve(self, given: Mapping[str, Any]) -> ResolvedSettings:
        """Complete the settings that the user gives with the models' own.

        Args:
            given: the settings of the user, by whole key.

        Raises:
            ConfigError: settings exclude each other.
        """
        dtype = given.get("generation.dtype", "")
        dtype = "" if dtype == "float32" else dtype
        return self.translator(dtype).resolve({**given, "generation.dtype": dtype})

    def prepare(self, values: Mapping[str, Any], recorder: Recorder | None, scores: bool = False) -> TextDecoding:
        """Prepare to decode whole n-best lists.

        Args:
            values: the values of all keys, by whole key.
            recorder: an observer that is added to those of the settings; ``None`` for no additional one.
            scores: whether hypotheses get a ``model_score``.

        Returns:
            The prepared decoding.

        Raises:
            ConfigError: settings exclude each other.
        """
        translator = self.translator(values["generation.dtype"])
        setup = translator.prepare(**values).generator.setup
        whole = {**values, "generation.nbest": min(setup.beam_size, values["generation.beam"])}
        if recorder is not None and not isinstance(setup.search, ExactSearch):  # exact search has no steps
            whole["generation.observers"] = [*values["generation.observers"], recorder]
        return translator.prepare(Details(scores=scores), **whole)

    def decode(self, values: Mapping[str, Any], lines: Lines, probe: Probe | None = None) -> dict[int, LineTrace]:
        """Decode lines together, and record every step.

        Args:
            values: the values of all keys, by whole key.
            lines: the lines.
            probe: a recorder that also keeps the members' scores at one step; hypotheses then have a ``model_score``.

        Returns:
            The trace of each line, by its number.

        Raises:
            ConfigError: settings exclude each other.
        """
        recorder = probe or Recorder()
        found = _translate(self.prepare(values, recorder, scores=probe is not None), lines)
        plain = self.prepare(values, None)
        joined = _translate(plain, lines) if plain.generator.can_merge else None
        return {
            item.id: LineTrace(
                recorder.steps(item.id),
                item.hypotheses,
                None if joined is None else joined[item.id - lines.first].hypotheses,
            )
            for item in found
        }


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ; a key that only one of the two has is among them."""
    return [key for key in dict.fromkeys((*one, *other)) if one.get(key) != other.get(key)]


def _translate(decoding: TextDecoding, lines: Lines) -> list[Translation]:
    return list(decoding.translate(lines.texts, lines.prefixes, len(lines.texts), lines.first))


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
        beams = [_first_beams(one.steps[0]), _first_beams(other.steps[0])]
        for step in range(max(len(one.steps), len(other.steps))):
            if step >= min(len(one.steps), len(other.steps)):
                return Difference(step, 0, DONE, float("inf"))
            a, b = (_Candidates(x.steps[step], known) for x, known in zip((one, other), beams, strict=True))
            if found := _in_step(step, a, b, tolerance):
                return found
            beams = [a.next_beams(), b.next_beams()]
    return nbest_difference(one.hypotheses, other.hypotheses, tolerance)


def _first_beams(step: StepTrace) -> list[tuple[int, ...]]:
    return [()] * (1 + max(step.beams))


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
        """Whether the sequence at ``rank`` of ``other`` has, or can have, the same score here."""
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


def _gap(one: float, other: float) -> float:
    return 0.0 if one == other else abs(one - other)  # -inf - -inf is NaN


@dataclass(frozen=True)
class Decode:
    """One of the two decodes that are compared."""

    models: InspectedModels
    settings: ResolvedSettings

    @property
    def dictionary(self) -> Dictionary:
        """The target vocabulary."""
        return self.models.translator(self.settings.generation.dtype).task.target_dictionary


@dataclass(frozen=True)
class Explanation:
    """Why two decodes of a line differ.

    Attributes:
        traces: the traces of both decodes; their hypotheses have a ``model_score``.
        scores: the members' scores of both decodes at the step of the difference; ``None`` if all steps agree, or if
            the scores were not recorded.
        model_gap: the largest difference between the members' log-probabilities at that step, in nats; ``None`` if
            there are no ``scores``.
        beams: maps beams of the first decode at that step to the beams of the other decode with the same tokens.
        keys: the smallest set found of keys that cause the difference: with the other decode's values for them, the
            first decode agrees with it up to and including the step. Empty if the models cause the difference, or if no
            cause was found.
    """

    traces: tuple[LineTrace, LineTrace]
    scores: tuple[ModelScores, ModelScores] | None
    model_gap: float | None
    beams: Mapping[int, int]
    keys: Sequence[str]


def explain(
    first: Decode, other: Decode, lines: Lines, line: int, difference: Difference, tolerance: float
) -> Explanation:
    """Find the cause of a difference.

    First the members' log-probabilities at the step are compared, for beams with the same tokens. If the models are
    different and their log-probabilities differ, the models are the cause. Otherwise the first decode is repeated with
    values of the other decode: first with one key at a time, then with all of them, from which keys are removed as long
    as the two decodes agree.

    Args:
        first: the first decode.
        other: the other decode.
        lines: the lines that are decoded together.
        line: number of the line that differs.
        difference: its first difference.
        tolerance: scores that differ by at most this value count as equal, in nats.

    Returns:
        The explanation.
    """
    step = -1 if difference.step is None else difference.step
    probes = Probe(line, step), Probe(line, step)
    traces = (
        first.models.decode(first.settings.values, lines, probes[0])[line],
        other.models.decode(other.settings.values, lines, probes[1])[line],
    )
    scores, gap, beams = None, None, {}
    if probes[0].found is not None and probes[1].found is not None:
        scores = probes[0].found, probes[1].found
        beams = _same_beams(traces, step)
        gap = model_difference(*scores, beams)
    keys: Sequence[str] = []
    if first.models is other.models or gap is None or gap <= tolerance:
        keys = _smallest_set(first, other, lines, line, difference, tolerance)
    return Explanation(traces, scores, gap, beams, keys)


def _same_beams(traces: tuple[LineTrace, LineTrace], step: int) -> dict[int, int]:
    """Map beams of the first decode to beams of the other with the same tokens; ties may have swapped them."""
    found: list[dict[tuple[int, ...], int]] = []
    for trace in traces:
        item = trace.steps[step]
        possible = (beam for beam, score in zip(item.beams, item.scores, strict=True) if score > float("-inf"))
        beams = sorted(set(possible), reverse=True)
        found.append({tuple(trace.history(step, beam)): beam for beam in beams})
    return {beam: found[1][tokens] for tokens, beam in found[0].items() if tokens in found[1]}


def _smallest_set(
    first: Decode, other: Decode, lines: Lines, line: int, difference: Difference, tolerance: float
) -> list[str]:
    """A set of keys, minimal under removal, with whose values from the other decode the first one agrees with it."""
    one, two = first.settings.values, other.settings.values
    wanted = other.models.decode(two, lines)[line]

    def agrees(keys: Sequence[str]) -> bool:
        try:
            values = {key: value for key, value in one.items() if key not in keys}
            values |= {key: two[key] for key in keys if key in two}
            changed = first.models.decode(values, lines)[line]
        except UserError:
            return False  # the values exclude each other
        return difference.precedes(first_difference(changed, wanted, tolerance))

    # use_cache=false makes the other switches of the cache ineffective, so it is tried after these narrower ones
    differing = sorted(differing_keys(one, two), key=lambda key: key == "debug.use_cache")
    for key in differing:
        if agrees([key]):
            return [key]
    if not agrees(differing):
        return []
    keys = list(differing)
    for key in differing:
        if len(keys) > 1 and agrees(rest := [item for item in keys if item != key]):
            keys = rest
    return keys
