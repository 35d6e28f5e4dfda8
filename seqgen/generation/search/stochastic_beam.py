"""Stochastic beam search: outputs sampled without replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.candidates import Candidates
from seqgen.generation.component import BatchInfo
from seqgen.generation.context import StepContext
from seqgen.generation.finished import FinishedHypotheses, Ranking
from seqgen.generation.search.randomness import PERTURBATION, TOKEN, draw
from seqgen.generation.search.sampling import RandomSearch, drawn_scores
from seqgen.registry import register_search


@dataclass
class StochasticBeamConfig:
    """Configuration of stochastic beam search."""

    seed: int = option(1, "seed of what is drawn", minimum=0)


@register_search("stochastic_beam", config=StochasticBeamConfig)
class StochasticBeam(RandomSearch):
    """Draws ``beam`` different outputs, as if without replacement from all outputs (Kool, van Hoof and Welling 2019).

    Every beam has a log-probability and a perturbed one: that of an output with Gumbel noise added, namely of the one
    among the outputs beginning with the beam where this is largest. Those of a beam's continuations are drawn under the
    condition that their largest is the beam's own (section 4), here from the largest downwards, so that no noise is
    needed for the many that come after. The ``beam`` largest of a sentence are kept: what has ended among them stays,
    and the others continue.

    Args:
        seed: of everything that is drawn.
    """

    additive = True

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
        search.perturbed[:, 0] = 0.0  # at first all beams are the same
        search.ended = nothing
        return search

    def finished(self, ranking: Ranking, early_stopping: str) -> DrawnHypotheses:
        """See ``Search.finished``."""
        return DrawnHypotheses(self, ranking)

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        beam, vocab = lprobs.shape[1:]
        beams, places = torch.arange(beam, device=lprobs.device), torch.arange(min(beam, vocab), device=lprobs.device)
        numbers = self.uniforms(TOKEN, context.step, beams, places)
        tokens, left = draw(lprobs.flatten(0, 1), numbers.flatten(0, 1))
        tokens, left = tokens.view_as(numbers), left.view_as(numbers)
        parents = beams.view(1, -1, 1).expand_as(tokens)
        gained = drawn_scores(lprobs, tokens, left)
        # the first is drawn from everything, whose mass is what normalizes
        before = self.lprobs.unsqueeze(-1) - left[..., :1].masked_fill(left[..., :1] == -torch.inf, 0.0)
        lprobs_so_far, masses = before + gained, before + left
        perturbed = downwards(self.perturbed, masses, self.uniforms(PERTURBATION, context.step, beams, places))
        found = Candidates(gained + scores.unsqueeze(-1), tokens, parents)
        return self._kept(found, lprobs_so_far, perturbed)

    def _kept(self, found: Candidates, lprobs: Tensor, perturbed: Tensor) -> Candidates:
        """Keep those whose perturbed log-probabilities are the largest, of these and of what has ended.

        Args:
            found: ``(sentences, beam, k)`` continuations of the beams.
            lprobs: their log-probabilities, of the same shape.
            perturbed: their perturbed ones.

        Returns:
            ``beam`` candidates of each sentence; those that something ended displaces have a score of ``-inf``.
        """
        beam = self.ended.size(1)
        best, order = perturbed.flatten(1).topk(beam, dim=1)
        least = torch.cat([self.ended, best], dim=1).topk(beam, dim=1).values[:, -1:]
        dropped = (best < least) | (best == -torch.inf)
        scores, tokens, beams = (
            values.flatten(1).gather(1, order) for values in (found.scores, found.tokens, found.beams)
        )
        # NaN stays, so that a model's damage is seen
        self.candidates = Candidates(scores.masked_fill(dropped & ~scores.isnan(), -torch.inf), tokens, beams)
        self.candidate_lprobs = lprobs.flatten(1).gather(1, order)
        self.candidate_perturbed = best.masked_fill(dropped, -torch.inf)
        return self.candidates

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Search.select_sentences``."""
        super().select_sentences(keep)
        self.candidates = self.candidates.select(keep)
        for name in ("lprobs", "perturbed", "ended", "candidate_lprobs", "candidate_perturbed"):
            setattr(self, name, getattr(self, name).index_select(0, keep))

    def advance(self, active: Candidates) -> None:
        """See ``Search.advance``."""
        same = (active.tokens.unsqueeze(2) == self.candidates.tokens.unsqueeze(1)) & (
            active.beams.unsqueeze(2) == self.candidates.beams.unsqueeze(1)
        )
        alive = (active.scores > -torch.inf).unsqueeze(2) & (self.candidate_perturbed > -torch.inf).unsqueeze(1)
        same &= alive  # (sentences, beam, candidates)
        columns = same.to(torch.int8).argmax(2)
        self.lprobs = self.candidate_lprobs.gather(1, columns)
        self.perturbed = self.candidate_perturbed.gather(1, columns).masked_fill(~same.any(2), -torch.inf)
        stopped = self.candidate_perturbed.masked_fill(same.any(1), -torch.inf)
        self.ended = torch.cat([self.ended, stopped], dim=1).topk(self.ended.size(1), dim=1).values


class DrawnHypotheses(FinishedHypotheses):
    """The hypotheses that a stochastic beam search has drawn: those with the largest perturbed log-probabilities.

    One that has finished early may still be displaced, so that neither the first nor the best ones are kept.

    Args:
        search: the search over the batch.
        ranking: how hypotheses score.
    """

    def __init__(self, search: StochasticBeam, ranking: Ranking):
        sentences, beam = search.ended.shape
        super().__init__(sentences, beam, ranking, search.ended.device)
        self.search = search
        self.perturbed = search.ended

    def finalize(
        self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None = None
    ) -> Candidates:
        """See ``FinishedHypotheses.finalize``."""
        self._widened(candidates.scores.dtype)
        finished = ends & (candidates.scores > -torch.inf)
        scores = self.ranking.score(candidates.scores, step + 1)
        new = {
            "lengths": torch.where(finished, step + 1, torch.zeros_like(candidates.tokens)),
            "beams": candidates.beams,
            "tokens": candidates.tokens,
            "cumulative": candidates.scores,
            "scores": scores if bonus is None else scores + bonus,
            "perturbed": self.search.candidate_perturbed.masked_fill(~finished, -torch.inf),
        }
        merged = {name: torch.cat([getattr(self, name), value], dim=1) for name, value in new.items()}
        best = merged["perturbed"].topk(self.beam, dim=1).indices
        for name, values in merged.items():
            setattr(self, name, values.gather(1, best))
        return self._first_active(candidates, ends)

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """No beam is active."""
        return (max_lengths <= step) | (active.scores == -torch.inf).all(1)

    def select(self, keep: Tensor) -> None:
        """See ``FinishedHypotheses.select``."""
        super().select(keep)
        self.perturbed = self.perturbed.index_select(0, keep)


def downwards(largest: Tensor, masses: Tensor, numbers: Tensor) -> Tensor:
    """Perturbed log-probabilities in descending order, given the largest.

    With the others below ``g`` and a probability ``Z`` left among them, the next one is
    ``-log(exp(-g) - log(u) / Z)`` for a random number ``u``: the largest of Gumbel variables whose probabilities add up
    to ``Z``, truncated at ``g`` (Kool, van Hoof and Welling 2019, sections 2.3 and 4).

    Args:
        largest: ``(...)``, the first; ``-inf`` where there is none.
        masses: ``(..., K)`` the logarithm of what each is drawn from; that of the first is not asked for.
        numbers: ``(..., K)`` between 0 and 1.

    Returns:
        ``(..., K)``; ``-inf`` where nothing was left.
    """
    found = [largest.to(masses.dtype).masked_fill(masses[..., 0] == -torch.inf, -torch.inf)]
    waits = (-numbers.log()).log() - masses
    for wait in waits[..., 1:].unbind(-1):
        found.append(-torch.logaddexp(-found[-1], wait))
    return torch.stack(found, dim=-1)
