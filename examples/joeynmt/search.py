"""The beam search of JoeyNMT 2.3: a finished hypothesis keeps its place in the beam.

With it, the n-best lists of a model that ``checkpoint.py`` loads are those of JoeyNMT::

    seqgen-generate common.user_dir=examples/joeynmt path=joeynmt-en-de generation.search=joeynmt input=- output=-
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqgen.extend import BatchInfo, BeamSearch, Candidates, FinishedHypotheses, Ranking, register_search


@register_search("joeynmt")
class JoeyNMTBeam(BeamSearch):
    """Beam search whose candidates compete with the continuations of hypotheses that have already ended."""

    def begin(self, batch: BatchInfo) -> JoeyNMTBeam:
        """See ``Search.begin``."""
        search = super().begin(batch)
        search.candidates_per_beam = 1
        return search

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """See ``Search.finished``."""
        return StayInBeam(batch, ranking)


class StayInBeam(FinishedHypotheses):
    """All candidates continue, also those that end; what is generated after the end is never a hypothesis.

    A beam that has ended can lose its place only to better candidates. At the maximum length, the beams that have not
    ended become hypotheses without end-of-sentence.
    """

    sentence_state = (*FinishedHypotheses.sentence_state, "over", "ended_at")

    def __init__(self, batch: BatchInfo, ranking: Ranking):
        super().__init__(batch, ranking)
        self.over = torch.zeros_like(self.lengths, dtype=torch.bool)
        """``(live, beam)`` which beams contain an end token."""
        self.ended_at = torch.zeros_like(self.over)
        """``(live, beam)`` at which ranks a candidate has ended so far; these do not follow the beams."""

    def finalize(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None) -> Candidates:
        """See ``FinishedHypotheses.finalize``."""
        was_over = self.over.gather(1, candidates.beams)
        self._keep(candidates, ends & ~was_over, step)
        self.over = was_over | ends
        self.ended_at = self.ended_at | ends | (candidates.scores == -torch.inf)
        return candidates

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """A sentence is done when a candidate has ended at each rank, or at the maximum length."""
        cut = max_lengths <= step + 1
        self._keep(active, cut.unsqueeze(1) & ~self.over, step)
        return cut | self.ended_at.all(1)

    def _keep(self, candidates: Candidates, finished: Tensor, step: int | Tensor) -> None:
        self._keep_best(candidates, self._ranked(candidates, step, None).masked_fill(~finished, -torch.inf), step)
