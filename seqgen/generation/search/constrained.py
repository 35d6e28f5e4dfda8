"""Beam search whose outputs contain given phrases."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.candidates import Candidates
from seqgen.generation.finished import FinishedHypotheses, FirstFinished, Ranking
from seqgen.generation.rules.huggingface_constraints import ConstrainedBeamSearch
from seqgen.generation.search.base import BeamSearch, Search, SearchBatch
from seqgen.generation.search.beam_allocation import allocate, repeated
from seqgen.generation.search.lexical_constraints import NONE, LexicalConstraints
from seqgen.registry import register_search


@dataclass
class ConstrainedConfig:
    """Configuration of lexically constrained search."""

    ordered: bool = option(False, "whether phrases must occur in the order given")


@register_search("constrained", config=ConstrainedConfig)
class ConstrainedSearch(Search):
    """Beam search with dynamic beam allocation (Post and Vilar 2018; Hu et al. 2019 for phrases in any order).

    Hypotheses are divided into banks by how many tokens of the phrases they have, and the beam takes the best of each
    bank in turn, the furthest bank first. Besides the best candidates of all there are considered the best one of each
    beam, and all that bring a hypothesis further. No hypothesis ends before it has every phrase. Hugging Face's rules
    are those of ``ConstrainedBeamSearch``.

    Args:
        ordered: whether phrases must occur in the order given, none overlapping another.
    """

    def __init__(self, ordered: bool = False):
        self.ordered = ordered

    def begin(self, batch: SearchBatch) -> Search:
        """See ``Search.begin``; without constraints this is beam search."""
        if batch.constraints is None:
            return BeamSearch().begin(batch)
        if batch.semantics == "huggingface":
            return ConstrainedBeamSearch(batch, self.ordered)
        return _ConstrainedBatch(batch, self.ordered)

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """Not called: ``begin`` gives the strategy that each batch is decoded with."""
        raise NotImplementedError("begin a batch first")


class _ConstrainedBatch(Search):
    """The search over one batch: its phrases, and how far each beam has come."""

    def __init__(self, batch: SearchBatch, ordered: bool):
        assert batch.constraints is not None
        self.batch = batch
        self.constraints = LexicalConstraints(batch.constraints, ordered, batch.device)
        self.progress = self.constraints.start(batch.beam_size)
        self._beam_search = BeamSearch().begin(replace(batch, constraints=None))

    def finished(self, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """See ``Search.finished``."""
        return _CompleteFinished(self, ranking)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Search.select_sentences``."""
        self.constraints.select(keep)
        self.progress = self.progress.select(keep)

    def advance(self, going_on: Candidates) -> None:
        """See ``Search.advance``."""
        self.progress = self.constraints.advance(self.progress.gather(going_on.beams), going_on.tokens)

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        unmet = self.constraints.unmet(self.progress)
        for token in self.batch.end_tokens or [self.batch.eos]:
            lprobs[..., token].masked_fill_(unmet, -torch.inf)
        candidates = self._candidates(step, lprobs, scores)
        reached = self.constraints.advance(self.progress.gather(candidates.beams), candidates.tokens)
        columns = allocate(self.constraints.bank(reached), candidates.scores)
        return candidates.gather(columns[:, : self.batch.num_candidates])

    def lacking(self, candidates: Candidates) -> Tensor:
        """Which candidates lack a phrase: ``(sentences, K)`` bool."""
        reached = self.constraints.advance(self.progress.gather(candidates.beams), candidates.tokens)
        return self.constraints.unmet(reached)

    def _candidates(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """The best of all, the best of each beam, and those that bring a hypothesis further, each once."""
        top = self._beam_search.step(step, lprobs, scores)
        if step == 0:
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
    """fairseq's rule for hypotheses that have every phrase; whatever ends one that lacks some, it is dropped."""

    def __init__(self, search: _ConstrainedBatch, ranking: Ranking):
        super().__init__(search.batch.num_sentences, search.batch.beam_size, ranking, search.batch.device)
        self.search = search

    def take(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None = None) -> Candidates:
        """See ``FinishedHypotheses.take``."""
        scores = candidates.scores.masked_fill(ends & self.search.lacking(candidates), -torch.inf)
        return super().take(Candidates(scores, candidates.tokens, candidates.beams), ends, step, bonus)
