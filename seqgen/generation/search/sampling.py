"""Search strategies that draw at random, and greedy search. What is drawn depends on the line, not on the batch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.candidates import Candidates
from seqgen.generation.finished import FinishedHypotheses, Ranking
from seqgen.generation.search.base import Search, SearchBatch
from seqgen.generation.search.randomness import PERTURBATION, TOKEN, draw, uniform
from seqgen.registry import register_search


@register_search("greedy")
class Greedy(Search):
    """Writes the most probable token at every step."""

    additive = True
    independent_rows = True

    def rows(self, beam: int) -> int:
        """One: all beams would be the same."""
        return 1

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``; one candidate for each beam."""
        best, tokens = lprobs.max(dim=-1)
        return Candidates(scores + best, tokens, _own_beams(tokens))


class RandomSearch(Search):
    """What strategies have in common whose decisions depend on a seed and on the lines that the sentences are.

    Args:
        seed: of everything that is drawn.
    """

    def __init__(self, seed: int = 1):
        self.seed = seed
        self.num_candidates = 0
        self.ids = torch.zeros(0, dtype=torch.int64)

    def begin(self, batch: SearchBatch) -> Self:
        """See ``Search.begin``."""
        super().begin(batch)
        search = copy.copy(self)
        search.num_candidates = batch.num_candidates
        ids = torch.arange(batch.num_sentences) if batch.ids is None else batch.ids
        search.ids = ids.to(batch.device)
        return search

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Search.select_sentences``."""
        self.ids = self.ids.index_select(0, keep)

    def numbers(self, purpose: int, step: int, *counters: Tensor) -> Tensor:
        """Random numbers between 0 and 1 for each sentence.

        Args:
            purpose: what they are for, see ``randomness``.
            step: how many tokens each hypothesis has.
            counters: what they depend on besides: ``(n,)`` int64 each.

        Returns:
            ``(sentences, n, ...)`` float64, one dimension for each of the counters.
        """
        shape = [1] * len(counters)
        spread = [counter.view(*shape[:i], -1, *shape[i + 1 :]) for i, counter in enumerate(counters)]
        return uniform(self.seed, purpose, step, self.ids.view(-1, *shape), *spread)


@dataclass
class SamplingConfig:
    """Configuration of sampling."""

    seed: int = option(1, "seed of what is drawn", minimum=0)


@register_search("sampling", config=SamplingConfig)
class Sampling(RandomSearch):
    """Every beam is an output of its own, drawn token by token.

    Args:
        seed: of everything that is drawn.
    """

    independent_rows = True

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``; one candidate for each beam."""
        beams = torch.arange(lprobs.size(1), device=lprobs.device)
        tokens, left = draw(lprobs.flatten(0, 1), self.numbers(TOKEN, step, beams).view(-1, 1))
        drawn = _drawn_scores(lprobs.flatten(0, 1), tokens, left).view_as(scores)
        return Candidates(scores + drawn, tokens.view_as(scores), _own_beams(scores))


@dataclass
class BeamSamplingConfig:
    """Configuration of beam sampling."""

    seed: int = option(1, "seed of what is drawn", minimum=0)


@register_search("beam_sampling", config=BeamSamplingConfig)
class BeamSampling(RandomSearch):
    """A beam search whose candidates are drawn without replacement, in proportion to their probability.

    They stand in the order in which they were drawn, as Hugging Face's do.

    Args:
        seed: of everything that is drawn.
    """

    additive = True

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        if step == 0:
            lprobs, scores = lprobs[:, :1], scores[:, :1]
        vocab = lprobs.size(-1)
        totals = (lprobs + scores.unsqueeze(-1)).flatten(1)
        places = torch.arange(min(self.num_candidates, totals.size(1)), device=totals.device)
        # (sentences, beam * V): entry 2 * V + 7 is token 7 after beam 2
        entries, left = draw(totals, self.numbers(TOKEN, step, places))
        found = Candidates(_drawn_scores(totals, entries, left), entries % vocab, entries // vocab)
        return found.padded(self.num_candidates)


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
    and the others go on.

    Args:
        seed: of everything that is drawn.
    """

    additive = True

    def __init__(self, seed: int = 1):
        super().__init__(seed)
        self.lprobs = self.perturbed = self.ended = torch.zeros(0, 0)
        self.candidate_lprobs = self.candidate_perturbed = self.lprobs
        self.candidates = Candidates(self.lprobs, self.ids.view(0, 0), self.ids.view(0, 0))

    def begin(self, batch: SearchBatch) -> Self:
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

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        beam, vocab = lprobs.shape[1:]
        beams, places = torch.arange(beam, device=lprobs.device), torch.arange(min(beam, vocab), device=lprobs.device)
        numbers = self.numbers(TOKEN, step, beams, places)
        tokens, left = draw(lprobs.flatten(0, 1), numbers.flatten(0, 1))
        tokens, left = tokens.view_as(numbers), left.view_as(numbers)
        parents = beams.view(1, -1, 1).expand_as(tokens)
        gained = _drawn_scores(lprobs, tokens, left)
        # the first is drawn from everything, whose mass is what normalizes
        before = self.lprobs.unsqueeze(-1) - left[..., :1].masked_fill(left[..., :1] == -torch.inf, 0.0)
        lprobs_so_far, masses = before + gained, before + left
        perturbed = downwards(self.perturbed, masses, self.numbers(PERTURBATION, step, beams, places))
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

    def advance(self, going_on: Candidates) -> None:
        """See ``Search.advance``."""
        same = (going_on.tokens.unsqueeze(2) == self.candidates.tokens.unsqueeze(1)) & (
            going_on.beams.unsqueeze(2) == self.candidates.beams.unsqueeze(1)
        )
        alive = (going_on.scores > -torch.inf).unsqueeze(2) & (self.candidate_perturbed > -torch.inf).unsqueeze(1)
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

    def take(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None = None) -> Candidates:
        """See ``FinishedHypotheses.take``."""
        self._widened(candidates.scores.dtype)
        finished = ends & (candidates.scores > -torch.inf)
        scores = self.ranking.score(candidates.scores, step + 1)
        new = {
            "lengths": torch.where(finished, step + 1, torch.zeros_like(candidates.tokens)),
            "beams": candidates.beams,
            "tokens": candidates.tokens,
            "sums": candidates.scores,
            "scores": scores if bonus is None else scores + bonus,
            "perturbed": self.search.candidate_perturbed.masked_fill(~finished, -torch.inf),
        }
        merged = {name: torch.cat([getattr(self, name), value], dim=1) for name, value in new.items()}
        best = merged["perturbed"].topk(self.beam, dim=1).indices
        for name, values in merged.items():
            setattr(self, name, values.gather(1, best))
        return self._first_going_on(candidates, ends)

    def done(self, going_on: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """No beam goes on."""
        return (max_lengths <= step) | (going_on.scores == -torch.inf).all(1)

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


def _drawn_scores(values: Tensor, entries: Tensor, left: Tensor) -> Tensor:
    """The values of drawn entries of the last dimension; ``-inf`` where nothing was left to be drawn, NaN as it was."""
    return values.gather(-1, entries).where(left > -torch.inf, left.to(values.dtype))


def _own_beams(values: Tensor) -> Tensor:
    """Each of ``(sentences, beam)`` candidates continues the beam in whose place it stands."""
    return torch.arange(values.size(1), device=values.device).expand_as(values).contiguous()
