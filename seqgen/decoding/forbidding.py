"""Finds the component that forbids all outputs of a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqgen.core import BatchInfo, DecodingSetup, Scoring, StepContext


class WatchedScoring(Scoring):
    """Scoring of one sentence that notes the first component after which no beam has a token, or its forced token.

    Args:
        setup: see ``Scoring``.
        batch: see ``Scoring``.
        found: gets the name of the component's class; empty while a beam has a token.
    """

    def __init__(self, setup: DecodingSetup, batch: BatchInfo, found: list[str]):
        super().__init__(setup, batch)
        self.found, self.narrows = found, False  # a deferred processor is not watched

    def process(self, context: StepContext, lprobs: Tensor, log_sum: Any = None) -> tuple[StepContext, Tensor]:
        """See ``Scoring.process``."""
        forced, beams = context.forced, context.scores

        def watch(component: Any, scores: Tensor) -> None:
            best = scores.amax(1)
            if forced is not None:
                best = scores.gather(1, forced.clamp(min=0).unsqueeze(1)).squeeze(1).where(forced >= 0, best)
            if beams is None or bool((best + beams > -torch.inf).any()):
                self.found.clear()
            elif not self.found:
                self.found.append(type(component).__name__)

        members = self.setup.ensemble.members
        watch(self.combination if len(members) > 1 else members[0].model, lprobs)
        return super().process(replace(context, watch=watch), lprobs, log_sum)
