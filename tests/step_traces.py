"""Steps of traces by hand."""

from __future__ import annotations

import torch

from seqgen.generation.observers import Outcome
from seqgen.lab.traces.line_trace import StepTrace


def step_of(
    tokens: list[int], scores: list[float], beams: list[int] | None = None, beam: int = 2, done: bool = False
) -> StepTrace:
    """A step of which the first ``beam`` candidates continue."""
    beams = beams or [0] * len(tokens)
    outcomes = [Outcome.CONTINUES if rank < beam else Outcome.BELOW_BEAM for rank in range(len(tokens))]
    return StepTrace(
        done,
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(tokens),
        torch.tensor(beams),
        torch.tensor(outcomes),
        torch.full((len(tokens),), -torch.inf, dtype=torch.float64),
        torch.tensor(tokens[:beam]),
        torch.tensor(beams[:beam]),
    )
