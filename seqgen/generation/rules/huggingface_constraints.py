"""Lexically constrained beam search by Hugging Face's rules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates, best_continuations
from seqgen.generation.component import BatchInfo
from seqgen.generation.context import StepContext
from seqgen.generation.finished import FinishedHypotheses, Ranking
from seqgen.generation.rules.huggingface_finished_groups import GroupedHypotheses
from seqgen.generation.search.base import Search
from seqgen.generation.search.beam import BeamSearch
from seqgen.generation.search.beam_allocation import NONE, repeated, take_turns
from seqgen.generation.search.lexical_constraints import OneAtATime


class HuggingFaceConstrainedBeam(Search):
    """Beam search that divides its beams among banks of hypotheses with equally many constraint tokens.

    The candidates are the beams with which beam search would continue and all continuations that match a further
    constraint token; the beam is filled with the best of each bank in turn. A hypothesis finishes only if it has every
    phrase. The original supports phrases in any order only; in a given order, only the first unmet phrase may begin.
    If no hypothesis has every phrase at the maximum length, the original returns some that lack a phrase; here there
    are none.

    Args:
        ordered: whether phrases must occur in the given order.
    """

    takes_constraints = True

    def __init__(self, ordered: bool):
        self.ordered = ordered

    def begin(self, batch: BatchInfo) -> Any:
        """See ``Search.begin``; without constraints this is beam search."""
        return BeamSearch().begin(batch) if batch.constraints is None else _ConstrainedBatch(batch, self.ordered)


class _ConstrainedBatch(Search):
    """The search over one batch."""

    def __init__(self, batch: BatchInfo, ordered: bool):
        assert batch.constraints is not None
        self.batch = batch
        self.constraints = OneAtATime(batch.constraints, ordered, batch.device)
        self.progress = self.constraints.start(batch.beam_size)
        self.reached = self.progress
        """Progress of the candidates of the newest step."""

    def finished(self, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """See ``Search.finished``."""
        return _AllocatedHypotheses(self, ranking, early_stopping)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Search.select_sentences``."""
        self.constraints.select(keep)
        self.progress = self.progress.select(keep)

    def advance(self, active: Candidates) -> None:
        """See ``Search.advance``."""
        self.progress = self.constraints.advance(self.progress.gather(active.beams), active.tokens)

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``; candidates that match a further token follow the best candidates."""
        beam = lprobs.size(1) if context.step else 1  # at the first step all beams are equal
        totals = lprobs[:, :beam] + scores[:, :beam].unsqueeze(-1)
        best = best_continuations(lprobs[:, :beam], scores[:, :beam], self.batch.num_candidates)
        further = self.constraints.next_tokens(self.progress)[:, :beam]  # (sentences, beam, W)
        gains = totals.gather(-1, further.clamp(min=0)).masked_fill(further == NONE, -torch.inf)
        beams = torch.arange(beam, device=lprobs.device).view(1, -1, 1).expand_as(further)
        candidates = Candidates(
            torch.cat([best.scores, gains.flatten(1)], dim=1),
            torch.cat([best.tokens, further.clamp(min=0).flatten(1)], dim=1),
            torch.cat([best.beams, beams.flatten(1)], dim=1),
        )
        self.reached = self.constraints.advance(self.progress.gather(candidates.beams), candidates.tokens)
        return candidates


class _AllocatedHypotheses(GroupedHypotheses):
    """The finished hypotheses of a constrained beam search, which also divide the beam among the banks."""

    def __init__(self, search: _ConstrainedBatch, ranking: Ranking, early_stopping: str):
        batch = search.batch
        super().__init__(batch.num_sentences, batch.beam_size, ranking, batch.device, early_stopping, batch.end_tokens)
        self.search = search

    def complete(self, candidates: Candidates) -> Tensor:
        """Those that are not forbidden and have every phrase."""
        return super().complete(candidates) & ~self.search.constraints.unmet(self.search.reached)

    def choose(self, candidates: Candidates, ended: Tensor) -> tuple[Tensor, Tensor]:
        """The best of each bank in turn, of beam search's choice and of those that match a further token."""
        plain = self.search.batch.num_candidates
        first = Candidates(*(values[:, :plain] for values in vars(candidates).values()))
        usual, kept = super().choose(first, ended[:, :plain])
        further = torch.arange(plain, ended.size(1), device=ended.device).expand(ended.size(0), -1)
        columns = torch.cat([usual, further], dim=1)
        scores = torch.cat([kept, candidates.scores.masked_fill(ended, -torch.inf)[:, plain:]], dim=1)
        entries = (candidates.tokens * self.beam + candidates.beams).gather(1, columns)
        scores = scores.masked_fill(repeated(entries), -torch.inf)
        banks = self.search.constraints.bank(self.search.reached).gather(1, columns)
        # as in the original, a constraint token counts 100 nats
        order = (banks * 100 + scores).argsort(dim=1, descending=True, stable=True)
        impossible = scores.gather(1, order) == -torch.inf
        turns = take_turns(banks.gather(1, order).masked_fill(impossible, NONE))
        chosen = order.gather(1, turns)[:, : self.beam]
        return columns.gather(1, chosen), scores.gather(1, chosen)
