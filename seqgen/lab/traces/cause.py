"""The cause of a difference between two decodes of a line: keys, an optimization, or the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqgen.data.dictionary import Dictionary
from seqgen.errors import UserError
from seqgen.lab.traces.decoding import InspectedModels, Lines, Settings
from seqgen.lab.traces.difference import Difference, first_difference, model_difference
from seqgen.lab.traces.line_trace import LineTrace, ModelScores, Probe


@dataclass(frozen=True)
class Decode:
    """One of the two decodes that are compared."""

    models: InspectedModels
    settings: Settings

    @property
    def dictionary(self) -> Dictionary:
        """The target vocabulary."""
        return self.models.translator(str(self.settings.values["generation.dtype"])).task.target_dictionary


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
        first.models.decode(first.settings, lines, probes[0])[line],
        other.models.decode(other.settings, lines, probes[1])[line],
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
        beams = sorted(set(item.beams[item.scores > float("-inf")].tolist()), reverse=True)
        found.append({tuple(trace.history(step, beam)): beam for beam in beams})
    return {beam: found[1][tokens] for tokens, beam in found[0].items() if tokens in found[1]}


def _smallest_set(
    first: Decode, other: Decode, lines: Lines, line: int, difference: Difference, tolerance: float
) -> list[str]:
    """A set of keys, minimal under removal, with whose values from the other decode the first one agrees with it."""
    wanted = other.models.decode(other.settings, lines)[line]

    def agrees(keys: Sequence[str]) -> bool:
        try:
            changed = first.models.decode(first.settings.with_keys(keys, other.settings), lines)[line]
        except UserError:
            return False  # the values exclude each other
        return difference.precedes(first_difference(changed, wanted, tolerance))

    # use_cache=false makes the other switches of the cache ineffective, so it is tried after these narrower ones
    differing = sorted(first.settings.differing(other.settings), key=lambda key: key == "debug.use_cache")
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
