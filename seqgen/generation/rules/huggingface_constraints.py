"""Lexically constrained beam search by Hugging Face's rules."""

from __future__ import annotations

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates, best_continuations
from seqgen.generation.finished import FinishedHypotheses, Ranking
from seqgen.generation.rules.huggingface_finished_groups import GroupedHypotheses
from seqgen.generation.search.base import Search, SearchBatch
from seqgen.generation.search.beam_allocation import NONE, repeated, take_turns
from seqgen.generation.search.lexical_constraints import OneAtATime


class ConstrainedBeamSearch(Search):
    """Beam search that shares its beams out among hypotheses that have come differently far with their phrases.

    To the beams that beam search would go on with there come all continuations that bring a phrase further, and of all
    these the best of each bank is taken in turn. A hypothesis finishes only if it has every phrase. The original knows
    phrases in any order only; in a given order, none but the first that is not met may begin. Where no hypothesis has
    every phrase at the maximum length, it gives some that lack a phrase; here, there are none.

    Args:
        batch: the batch that it searches.
        ordered: whether phrases must occur in the order given.
    """

    def __init__(self, batch: SearchBatch, ordered: bool):
        assert batch.constraints is not None
        self.batch = batch
        self.constraints = OneAtATime(batch.constraints, ordered, batch.device)
        self.progress = self.constraints.start(batch.beam_size)
        self.reached = self.progress
        """The progress of the candidates of the last step."""

    def finished(self, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """See ``Search.finished``."""
        return _AllocatedHypotheses(self, ranking, early_stopping)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Search.select_sentences``."""
        self.constraints.select(keep)
        self.progress = self.progress.select(keep)

    def advance(self, going_on: Candidates) -> None:
        """See ``Search.advance``."""
        self.progress = self.constraints.advance(self.progress.gather(going_on.beams), going_on.tokens)

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``; behind the best candidates stand those that bring a phrase further."""
        beam = lprobs.size(1) if step else 1  # at first all beams are the same
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
    """The finished hypotheses of a constrained beam search, which also shares out the beam."""

    def __init__(self, search: ConstrainedBeamSearch, ranking: Ranking, early_stopping: str):
        batch = search.batch
        super().__init__(batch.num_sentences, batch.beam_size, ranking, batch.device, early_stopping, batch.end_tokens)
        self.search = search

    def complete(self, candidates: Candidates) -> Tensor:
        """Those that are possible and have every phrase."""
        return super().complete(candidates) & ~self.search.constraints.unmet(self.search.reached)

    def choose(self, candidates: Candidates, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Of those that beam search would take and those that bring a phrase further, the best of each bank in turn."""
        plain = self.search.batch.num_candidates
        first = Candidates(*(values[:, :plain] for values in vars(candidates).values()))
        usual, kept = super().choose(first, ended[:, :plain])
        further = torch.arange(plain, ended.size(1), device=ended.device).expand(ended.size(0), -1)
        columns = torch.cat([usual, further], dim=1)
        scores = torch.cat([kept, candidates.scores.masked_fill(ended, -torch.inf)[:, plain:]], dim=1)
        entries = (candidates.tokens * self.beam + candidates.beams).gather(1, columns)
        scores = scores.masked_fill(repeated(entries), -torch.inf)
        banks = self.search.constraints.bank(self.search.reached).gather(1, columns)
        # a token of a phrase outweighs 100 nats, and no more
        order = (banks * 100 + scores).argsort(dim=1, descending=True, stable=True)
        impossible = scores.gather(1, order) == -torch.inf
        turns = take_turns(banks.gather(1, order).masked_fill(impossible, NONE))
        chosen = order.gather(1, turns)[:, : self.beam]
        return columns.gather(1, chosen), scores.gather(1, chosen)
