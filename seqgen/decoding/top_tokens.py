"""The most probable tokens in place of each token of an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from seqgen.core.candidates import best_continuations
from seqgen.core.context import StepContext
from seqgen.core.observers import Observer
from seqgen.core.scores import Scores


class TopTokens(Observer):
    """Lists the most probable tokens, and their log-probabilities, for each token of a hypothesis.

    Args:
        count: number of tokens.
    """

    can_merge = True
    reads_finished = False

    def __init__(self, count: int):
        self.count = count

    def beam_values(self, context: StepContext, scores: Scores) -> Mapping[str, Tensor]:
        """See ``Observer.beam_values``."""
        if context.process is not None:  # the search applies the processors itself
            scores = replace(scores, values=context.process(scores.values.clone()))
        lprobs = scores.seen()
        rows = lprobs.flatten(0, 1).unsqueeze(1)
        best = best_continuations(rows, torch.zeros_like(rows[..., 0]), self.count, scores.in_blocks)
        shape = (*lprobs.shape[:2], self.count)
        return {"top_tokens": best.tokens.view(shape), "top_scores": best.scores.view(shape)}
