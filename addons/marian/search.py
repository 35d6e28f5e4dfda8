"""Marian's beam search, in which finished hypotheses take the place of beams."""

from __future__ import annotations

import torch
from torch import Tensor

from seqgen.extend import BatchInfo, BeamSearch, Candidates, FinishedHypotheses, FirstFinished, Ranking, register_search


@register_search("marian")
class MarianBeam(BeamSearch):
    """Beam search in which each finished hypothesis reduces the number of active beams by one, as in Marian.

    Hypotheses that reach the maximum length without end-of-sentence are cut there and compete with the others.
    """

    can_merge = True
    stops_early = False

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """See ``Search.finished``."""
        return MarianFinished(batch, ranking)


class MarianFinished(FirstFinished):
    """Of the candidates of a sentence, the best ones end or continue: as many as places without a hypothesis.

    Args:
        batch: see ``FinishedHypotheses``.
        ranking: see ``FinishedHypotheses``.

    Attributes:
        cuts: whether active beams become hypotheses at the maximum length; by Hugging Face's rules the session cuts.
    """

    def __init__(self, batch: BatchInfo, ranking: Ranking):
        super().__init__(batch, ranking)
        self.cuts = not batch.counts_start

    def finalize(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None) -> Candidates:
        """Drop all but the best candidates, and finalize those of them that end."""
        free = self.beam - (self.lengths > 0).sum(1, keepdim=True)
        beyond = torch.arange(ends.size(1), device=ends.device) >= free
        return super().finalize(candidates.without(beyond), ends, step, bonus)

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """Also cuts the active beams of sentences that have reached the maximum length."""
        if not self.cuts:
            return super().done(active, step, max_lengths)
        cut = (max_lengths <= step + 1).unsqueeze(1) & (active.scores > -torch.inf)
        by_beam = step.unsqueeze(1) if isinstance(step, Tensor) else step
        places = (self.lengths > 0).sum(1, keepdim=True) + cut.cumsum(1) - 1
        self._place(places, cut & (places < self.beam), active, self._ranked(active, by_beam, None), by_beam)
        return super().done(active, step, max_lengths)
