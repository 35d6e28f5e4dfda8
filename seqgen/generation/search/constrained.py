"""Lexically constrained beam search under fairseq's rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates
from seqgen.generation.component import BatchInfo
from seqgen.generation.context import StepContext
from seqgen.generation.finished import FinishedHypotheses, FirstFinished, Ranking
from seqgen.generation.search.base import Search
from seqgen.generation.search.beam import BeamSearch
from seqgen.generation.search.lexical_constraints import NONE, LexicalConstraints, Progress, allocate, repeated
from seqgen.registry import register_search


@register_search("constrained")
class ConstrainedSearch(Search):
    """Beam search with dynamic beam allocation (Post and Vilar 2018; Hu et al. 2019 for phrases in any order).

    Hypotheses are divided into banks by their number of matched constraint tokens, and the beam is filled with the best
    of each bank in turn, beginning with the bank that has most. The candidates are the best ones of the sentence, the
    best one of each beam, and all that match a further constraint token. No hypothesis ends before it has every
    phrase. Under Hugging Face's rules, ``HuggingFaceConstrainedBeam`` is used instead.

    Args:
        ordered: whether phrases must occur in the given order, without overlaps.
    """

    takes_constraints = True

    def __init__(self, ordered: bool = False):
        self.ordered = ordered

    def begin(self, batch: BatchInfo) -> Any:
        """See ``Search.begin``; without constraints this is beam search."""
        return BeamSearch().begin(batch) if batch.constraints is None else self.for_batch(batch)

    def for_batch(self, batch: BatchInfo) -> ConstrainedBatch:
        """The search over a batch with constraints."""
        return _BankedBatch(batch, LexicalConstraints, self.ordered)


class ConstrainedBatch(Search):
    """The search over one batch: its phrases, and the progress of each beam; a subclass implements ``step``.

    Args:
        batch: the batch.
        rules: the class of the constraints.
        ordered: see ``ConstrainedSearch``.
    """

    def __init__(self, batch: BatchInfo, rules: type[LexicalConstraints], ordered: bool):
        assert batch.constraints is not None
        self.batch = batch
        self.constraints = rules(batch.constraints, ordered, batch.device)
        self.progress = self.constraints.start(batch.beam_size)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Search.select_sentences``."""
        self.constraints.select(keep)
        self.progress = self.progress.select(keep)

    def advance(self, active: Candidates) -> None:
        """See ``Search.advance``."""
        self.progress = self.reached(active)

    def reached(self, candidates: Candidates) -> Progress:
        """The progress of candidates."""
        return self.constraints.advance(self.progress.gather(candidates.beams), candidates.tokens)


class _BankedBatch(ConstrainedBatch):
    """The search over one batch by fairseq's rules."""

    def __init__(self, batch: BatchInfo, rules: type[LexicalConstraints], ordered: bool):
        super().__init__(batch, rules, ordered)
        self._beam_search = BeamSearch().begin(replace(batch, constraints=None))

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """See ``Search.finished``."""
        return _CompleteFinished(batch, ranking, self)

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        unmet = self.constraints.unmet(self.progress)
        for token in self.batch.end_tokens:
            lprobs[..., token].masked_fill_(unmet, -torch.inf)
        candidates = self._candidates(context, lprobs, scores)
        columns = allocate(self.constraints.bank(self.reached(candidates)), candidates.scores)
        return candidates.gather(columns[:, : self.batch.num_candidates])

    def lacking(self, candidates: Candidates) -> Tensor:
        """Which candidates lack a phrase: ``(sentences, K)`` bool."""
        return self.constraints.unmet(self.reached(candidates))

    def _candidates(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """The best of the sentence, the best of each beam, and those that match a further token, without duplicates."""
        top = self._beam_search.step(context, lprobs, scores)
        if context.step == 0:
            lprobs, scores = lprobs[:, :1], scores[:, :1]
        totals = lprobs + scores.unsqueeze(-1)
        beam, vocab = totals.shape[1:]
        each = torch.arange(beam, device=totals.device).expand(totals.size(0), -1)
        further = self.constraints.next_tokens(self.progress)[:, :beam]  # (sentences, beam, 2 * P)
        tokens = torch.cat([top.tokens, totals.argmax(-1), further.flatten(1)], dim=1)
        beams = torch.cat([top.beams, each, each.repeat_interleave(further.size(-1), dim=1)], dim=1)
        nothing = tokens == NONE
        entries = (beams * vocab + tokens).masked_fill(nothing, NONE)
        values = totals.flatten(1).gather(1, entries.clamp(min=0)).masked_fill(nothing, -torch.inf)
        return Candidates(values.masked_fill(repeated(entries), -torch.inf), tokens.clamp(min=0), beams)


class _CompleteFinished(FirstFinished):
    """fairseq's rule, restricted to hypotheses with every phrase; one that ends without a phrase is dropped."""

    def __init__(self, batch: BatchInfo, ranking: Ranking, search: _BankedBatch):
        super().__init__(batch, ranking)
        self.search = search

    def finalize(
        self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None = None
    ) -> Candidates:
        """See ``FinishedHypotheses.finalize``."""
        scores = candidates.scores.masked_fill(ends & self.search.lacking(candidates), -torch.inf)
        return super().finalize(Candidates(scores, candidates.tokens, candidates.beams), ends, step, bonus)
