"""Why two decodes of the same line differ: which keys, which optimization, or the models themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqgen.data.dictionary import Dictionary
from seqgen.errors import UserError
from seqgen.inspection.decoding import InspectedModels, Lines, Settings
from seqgen.inspection.difference import Difference, first_difference, model_difference
from seqgen.inspection.trace import LineTrace, ModelScores, Probe


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
    """What one decode has otherwise than the other.

    Attributes:
        traces: both decodes of the line; their hypotheses have model scores.
        scores: what the models said at the step; ``None`` where the steps agree or are not known.
        model_gap: the largest difference of the members' log-probabilities at the step, in nats; likewise ``None``.
        beams: for beams of the first decode at the step those of the other with the same tokens.
        keys: keys that cause the difference: with the other decode's values for them, the first one agrees with it up
            to and including the step. Several where only all of them together do; none where the models cause the
            difference, or nothing that was tried explains it.
    """

    traces: tuple[LineTrace, LineTrace]
    scores: tuple[ModelScores, ModelScores] | None
    model_gap: float | None
    beams: Mapping[int, int]
    keys: Sequence[str]


def explain(
    first: Decode, other: Decode, lines: Lines, line: int, difference: Difference, tolerance: float
) -> Explanation:
    """Find what causes a difference.

    The members' log-probabilities at the step are compared first: the beams are the same there. Where the models are
    different and so are their log-probabilities, the models are the cause. Otherwise the values of the other decode are
    given to the first one, key by key, until both agree.

    Args:
        first: one decode.
        other: the other.
        lines: lines that are decoded together.
        line: number of the one that differs.
        difference: its first difference.
        tolerance: how far scores may differ, in nats.
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
    """For beams of the first decode those of the other with the same tokens; ties may have exchanged them."""
    found: list[dict[tuple[int, ...], int]] = []
    for trace in traces:
        item = trace.steps[step]
        beams = sorted(set(item.beams[item.scores > float("-inf")].tolist()), reverse=True)
        found.append({tuple(trace.history(step, beam)): beam for beam in beams})
    return {beam: found[1][tokens] for tokens, beam in found[0].items() if tokens in found[1]}


def _smallest_set(
    first: Decode, other: Decode, lines: Lines, line: int, difference: Difference, tolerance: float
) -> list[str]:
    """A smallest set of keys with which the first decode agrees with the other at the difference."""
    wanted = other.models.decode(other.settings, lines)[line]

    def agrees(keys: Sequence[str]) -> bool:
        try:
            changed = first.models.decode(first.settings.with_keys(keys, other.settings), lines)[line]
        except UserError:
            return False  # the values do not go together
        return difference.precedes(first_difference(changed, wanted, tolerance))

    # without a cache no switch of the cache has an effect, so that the narrower switches are tried before it
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
