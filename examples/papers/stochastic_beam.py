"""Stochastic beam search: sequences sampled without replacement.

Kool, van Hoof and Welling 2019, "Stochastic Beams and Where to Find Them". The outputs are those with the ``beam``
largest perturbed log-probabilities ``G(y) = log p(y) + Gumbel noise``, as if different sequences had been drawn one
after the other. That of a prefix is the maximum over all sequences that begin with it; given this maximum, those of its
continuations are drawn in descending order, so that noise is needed only for the largest few ::

    G_1 = G(prefix),    G_i = -log(exp(-G_{i-1}) - log(u) / Z_i),    u uniform, Z_i the mass that is left

    seqgen-generate common.user_dir=examples/papers/stochastic_beam.py path=runs/a input=test.en \
        generation.search=stochastic_beam generation.nbest=5 format=json
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from seqgen.extend import (
    TOKEN,
    BatchInfo,
    Candidates,
    FinishedHypotheses,
    RandomSearch,
    Ranking,
    Scores,
    StepContext,
    draw,
    drawn_scores,
    option,
    register_search,
)

PERTURBATION = 2
"""Counter of the purpose of a random number: the noise of a perturbed log-probability."""


@dataclass
class StochasticBeamConfig:
    """Configuration of stochastic beam search; its fields are the keys ``search.FIELD``."""

    seed: int = option(1, "seed of the random numbers", minimum=0)


@register_search("stochastic_beam", config=StochasticBeamConfig)
class StochasticBeam(RandomSearch):
    """Samples ``beam`` different sequences without replacement.

    The ``beam`` largest perturbed log-probabilities of each sentence are kept: the hypotheses among them that have
    ended stay, and the others continue.

    Args:
        seed: seed of the random numbers.
    """

    sentence_state = ("ids", "lprobs", "perturbed", "ended", "candidate_lprobs", "candidate_perturbed")

    def __init__(self, seed: int = 1):
        super().__init__(seed)
        self.lprobs = self.perturbed = self.ended = torch.zeros(0, 0)
        self.candidate_lprobs = self.candidate_perturbed = self.lprobs
        self.candidates = Candidates(self.lprobs, self.ids.view(0, 0), self.ids.view(0, 0))

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Search.begin``."""
        search = super().begin(batch)
        nothing = torch.full((batch.num_sentences, batch.beam_size), -torch.inf, device=batch.device)
        search.lprobs = torch.zeros_like(nothing)
        search.candidate_lprobs, search.candidate_perturbed = search.lprobs, nothing
        ids = torch.zeros_like(nothing, dtype=torch.int64)
        search.candidates = Candidates(nothing, ids, ids)
        search.perturbed = nothing.clone()
        search.perturbed[:, 0] = 0.0  # at the first step all beams are equal
        search.ended = nothing
        return search

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> DrawnHypotheses:
        """See ``Search.finished``."""
        return DrawnHypotheses(batch, ranking, self)

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``."""
        lprobs, so_far = scores.lprobs(), scores.beams
        beam, vocab = lprobs.shape[1:]
        beams, places = torch.arange(beam, device=lprobs.device), torch.arange(min(beam, vocab), device=lprobs.device)
        numbers = self.uniforms(TOKEN, context.step, beams, places)
        tokens, left = draw(lprobs.flatten(0, 1), numbers.flatten(0, 1))
        tokens, left = tokens.view_as(numbers), left.view_as(numbers)
        parents = beams.view(1, -1, 1).expand_as(tokens)
        gained = drawn_scores(lprobs, tokens, left)
        # the first token is drawn from the whole distribution, whose log mass is the log-sum-exp of the scores
        before = self.lprobs.unsqueeze(-1) - left[..., :1].masked_fill(left[..., :1] == -torch.inf, 0.0)
        lprobs_so_far, masses = before + gained, before + left
        perturbed = downwards(self.perturbed, masses, self.uniforms(PERTURBATION, context.step, beams, places))
        found = Candidates(gained + so_far.unsqueeze(-1), tokens, parents)
        return self._kept(found, lprobs_so_far, perturbed)

    def _kept(self, found: Candidates, lprobs: Tensor, perturbed: Tensor) -> Candidates:
        """Keep the largest perturbed log-probabilities among these continuations and the ended hypotheses.

        Args:
            found: ``(sentences, beam, k)`` continuations of the beams.
            lprobs: their log-probabilities, of the same shape.
            perturbed: their perturbed log-probabilities, of the same shape.

        Returns:
            ``beam`` candidates of each sentence; those below an ended hypothesis have a score of ``-inf``.
        """
        beam = self.ended.size(1)
        best, order = perturbed.flatten(1).topk(beam, dim=1)
        least = torch.cat([self.ended, best], dim=1).topk(beam, dim=1).values[:, -1:]
        dropped = (best < least) | (best == -torch.inf)
        scores, tokens, beams = (
            values.flatten(1).gather(1, order) for values in (found.scores, found.tokens, found.beams)
        )
        # NaN stays, so that the session reports it
        self.candidates = Candidates(scores.masked_fill(dropped & ~scores.isnan(), -torch.inf), tokens, beams)
        self.candidate_lprobs = lprobs.flatten(1).gather(1, order)
        self.candidate_perturbed = best.masked_fill(dropped, -torch.inf)
        return self.candidates

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Search.select_sentences``."""
        super().select_sentences(keep)
        self.candidates = self.candidates.select(keep)

    def advance(self, active: Candidates) -> None:
        """See ``Search.advance``."""
        possible = replace(self.candidates, scores=self.candidate_perturbed)
        same = active.matches(possible) & (active.scores > -torch.inf).unsqueeze(2)  # (sentences, beam, candidates)
        columns = same.to(torch.int8).argmax(2)
        self.lprobs = self.candidate_lprobs.gather(1, columns)
        self.perturbed = self.candidate_perturbed.gather(1, columns).masked_fill(~same.any(2), -torch.inf)
        stopped = self.candidate_perturbed.masked_fill(same.any(1), -torch.inf)
        self.ended = torch.cat([self.ended, stopped], dim=1).topk(self.ended.size(1), dim=1).values


class DrawnHypotheses(FinishedHypotheses):
    """The finished hypotheses of stochastic beam search: those with the largest perturbed log-probabilities.

    A later hypothesis with a larger perturbed log-probability replaces a finished one, whatever their scores are.

    Args:
        batch: see ``FinishedHypotheses``.
        ranking: see ``FinishedHypotheses``.
        search: the search over the batch.
    """

    sentence_state = (*FinishedHypotheses.sentence_state, "perturbed")

    def __init__(self, batch: BatchInfo, ranking: Ranking, search: StochasticBeam):
        super().__init__(batch, ranking)
        self.search = search
        self.perturbed = search.ended

    def finalize(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None) -> Candidates:
        """See ``FinishedHypotheses.finalize``."""
        finished = ends & (candidates.scores > -torch.inf)
        new = self._entries(candidates, finished, self._ranked(candidates, step, bonus), step)
        new["perturbed"] = self.search.candidate_perturbed.masked_fill(~finished, -torch.inf)
        merged = {name: torch.cat([getattr(self, name), value], dim=1) for name, value in new.items()}
        best = merged["perturbed"].topk(self.beam, dim=1).indices
        for name, values in merged.items():
            setattr(self, name, values.gather(1, best))
        return self._first_active(candidates, ends)


def downwards(largest: Tensor, masses: Tensor, numbers: Tensor) -> Tensor:
    """Sample perturbed log-probabilities in descending order, given the largest.

    If the previous one is ``g`` and the remaining tokens have the total probability ``Z``, the next one is
    ``-log(exp(-g) - log(u) / Z)`` with a uniform ``u``: the maximum of Gumbel variables with total probability ``Z``,
    truncated at ``g`` (Kool, van Hoof and Welling 2019, sections 2.3 and 4).

    Args:
        largest: ``(...)``, the first one; ``-inf`` where there is none.
        masses: ``(..., K)`` log of the probability mass that each is drawn from; the first of them is only compared
            with ``-inf``.
        numbers: ``(..., K)`` uniforms between 0 and 1.

    Returns:
        ``(..., K)``; ``-inf`` where no mass was left.
    """
    found = [largest.to(masses.dtype).masked_fill(masses[..., 0] == -torch.inf, -torch.inf)]
    waits = (-numbers.log()).log() - masses
    for wait in waits[..., 1:].unbind(-1):
        found.append(-torch.logaddexp(-found[-1], wait))
    return torch.stack(found, dim=-1)
