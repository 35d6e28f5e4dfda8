"""Beam search and greedy search."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from seqgen.core.candidates import Candidates, best_continuations
from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.search import Search


class BeamSearch(Search):
    """Keeps the hypotheses with the largest cumulative log-probabilities."""

    accepts_logits = True
    can_merge = True
    certifiable = True
    is_stochastic = False
    takes_columns = True

    candidates_per_beam = 2
    """Candidates of which at least one continues; more if there are further end tokens."""

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Search.begin``."""
        search = super().begin(batch)
        search.candidates_per_beam = batch.num_candidates // batch.beam_size
        return search

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        count = self.candidates_per_beam * lprobs.size(1)
        # at the first step all beams of a sentence are equal: only one is expanded
        if context.step == 0:
            lprobs, scores = lprobs[:, :1], scores[:, :1]
        return best_continuations(lprobs, scores, count)


class Greedy(Search):
    """Generates the most probable token at every step."""

    accepts_logits = True
    can_merge = True
    generates_one = True
    continues_each_beam = True
    is_stochastic = False
    stops_early = False
    takes_columns = True

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``; one candidate for each beam."""
        best, tokens = lprobs.max(dim=-1)
        return Candidates(scores + best, tokens, own_beams(tokens))


def own_beams(values: Tensor) -> Tensor:
    """The parent beams of ``(sentences, beam)`` candidates if candidate ``i`` continues beam ``i``."""
    if values.size(1) == 1:
        return torch.zeros_like(values, dtype=torch.int64)
    return torch.arange(values.size(1), device=values.device).expand_as(values).contiguous()
