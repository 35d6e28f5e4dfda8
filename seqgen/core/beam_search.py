"""Beam search and greedy search."""

from __future__ import annotations

from typing import Self

from seqgen.core.candidates import Candidates
from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.scores import Scores
from seqgen.core.search import Search


class BeamSearch(Search):
    """Keeps the hypotheses with the largest cumulative log-probabilities."""

    can_merge = True
    certifiable = True
    is_stochastic = False

    candidates_per_beam = 2
    """Candidates of which at least one continues; more if there are further end tokens."""

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Search.begin``."""
        search = super().begin(batch)
        search.candidates_per_beam = batch.num_candidates // batch.beam_size
        return search

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``."""
        count = self.candidates_per_beam * scores.beams.size(1)
        # at the first step all beams of a sentence are equal: only one is expanded
        return (scores if context.step else scores.of_beams(slice(1))).best(count)


class Greedy(Search):
    """Generates the most probable token at every step."""

    can_merge = True
    generates_one = True
    continues_each_beam = True
    is_stochastic = False
    stops_early = False

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``; one candidate for each beam."""
        return scores.best_of_each()
