"""Beam search whose outputs contain given phrases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.candidates import Candidates
from seqgen.generation.lexical_constraints import NONE, LexicalConstraints
from seqgen.generation.search import BeamSearch, Search, SearchBatch
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
    beam, and all that bring a hypothesis further. No hypothesis ends before it has every phrase.

    Args:
        ordered: whether phrases must occur in the order given, none overlapping another.
    """

    def __init__(self, ordered: bool = False):
        self.ordered = ordered

    def begin(self, batch: SearchBatch) -> Search:
        """See ``Search.begin``; without constraints this is beam search."""
        return BeamSearch() if batch.constraints is None else _ConstrainedBatch(batch, self.ordered)

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """Not called: ``begin`` gives the strategy that each batch is decoded with."""
        raise NotImplementedError("begin a batch first")


class _ConstrainedBatch(Search):
    """The search over one batch: its phrases, and how far each beam has come."""

    additive = True

    def __init__(self, batch: SearchBatch, ordered: bool):
        assert batch.constraints is not None
        self.eos = batch.eos
        self.constraints = LexicalConstraints(batch.constraints, ordered, batch.device)
        self.progress = self.constraints.start(batch.beam_size)
        self._beam_search = BeamSearch()

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Search.select_sentences``."""
        self.constraints.select(keep)
        self.progress = self.progress.select(keep)

    def advance(self, going_on: Candidates) -> None:
        """See ``Search.advance``."""
        self.progress = self.constraints.advance(self.progress.gather(going_on.beams), going_on.tokens)

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        lprobs[..., self.eos].masked_fill_(self.constraints.unmet(self.progress), -torch.inf)
        candidates = self._candidates(step, lprobs, scores)
        reached = self.constraints.advance(self.progress.gather(candidates.beams), candidates.tokens)
        columns = allocate(self.constraints.bank(reached), candidates.scores)
        return candidates.gather(columns[:, : 2 * lprobs.size(1)])

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
        entries = beams * vocab + tokens.clamp(min=0)
        values = totals.flatten(1).gather(1, entries).masked_fill(tokens == NONE, -torch.inf)
        return Candidates(values.masked_fill(_repeated(entries), -torch.inf), tokens.clamp(min=0), beams)


def allocate(banks: Tensor, scores: Tensor) -> Tensor:
    """Put candidates in the order in which the beam takes them: the best of each bank in turn, the furthest bank first.

    Banks 2 2 1 1 0 of falling scores become 2 1 0 2 1.

    Args:
        banks: ``(sentences, K)`` int64.
        scores: ``(sentences, K)``; candidates of score ``-inf`` come last.

    Returns:
        ``(sentences, K)`` int64 columns.
    """
    size = banks.size(1)
    banks = banks.masked_fill(scores == -torch.inf, -1)
    by_score = scores.argsort(dim=1, descending=True, stable=True)
    sorted_banks, order = banks.gather(1, by_score).sort(dim=1, descending=True, stable=True)
    order = by_score.gather(1, order)
    # sorted banks 2 2 1 1 0: each begins at column 0 0 2 2 4, so that the turns within banks are 0 1 0 1 0
    columns = torch.arange(size, device=banks.device).expand_as(banks)
    begins = torch.ones_like(sorted_banks, dtype=torch.bool)
    begins[:, 1:] = sorted_banks[:, 1:] != sorted_banks[:, :-1]
    turns = columns - columns.masked_fill(~begins, 0).cummax(dim=1).values
    turns = turns + size * (sorted_banks == -1)
    return order.gather(1, turns.argsort(dim=1, stable=True))


def _repeated(entries: Tensor) -> Tensor:
    """Which entries have occurred before in their row: ``[5, 3, 5, 5]`` gives ``[no, no, yes, yes]``."""
    ordered, order = entries.sort(dim=1, stable=True)
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(repeated).scatter(1, order, repeated)
