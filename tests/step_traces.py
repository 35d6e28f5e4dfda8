"""Steps of traces by hand."""

from __future__ import annotations

from seqgen.addons.traces.trace import StepTrace


def step_of(
    tokens: list[int], scores: list[float], beams: list[int] | None = None, beam: int = 2, done: bool = False
) -> StepTrace:
    """A step of which the first ``beam`` candidates continue."""
    outcomes = "".join("C" if rank < beam else "B" for rank in range(len(tokens)))
    return StepTrace(scores, tokens, beams or [0] * len(tokens), outcomes, list(range(beam)), done)
