"""Search strategies that draw at random, and greedy search. What is drawn depends on the line, not on the batch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.candidates import Candidates
from seqgen.generation.hypotheses import FinishedHypotheses, Ranking
from seqgen.generation.randomness import GUMBEL, TOKEN, gumbel, uniform
from seqgen.generation.search import Search, SearchBatch
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

    def noise(self, step: int, lprobs: Tensor) -> Tensor:
        """Gumbel noise for every possible continuation: like ``lprobs``, ``(sentences, beam, V)``."""
        beams, tokens = (torch.arange(size, device=lprobs.device) for size in lprobs.shape[1:])
        return gumbel(
            self.seed, GUMBEL, step, self.ids.view(-1, 1, 1), beams.view(1, -1, 1), tokens, dtype=lprobs.dtype
        )


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
        numbers = uniform(self.seed, TOKEN, step, self.ids.unsqueeze(1), beams)
        # probabilities .5 0 .3 .2 sum to .5 .5 .8 1.: the number .5 is the first beyond the second sum, hence token 2
        sums = lprobs.double().exp().cumsum(-1)
        wanted = numbers.unsqueeze(-1) * sums[..., -1:]
        # where everything is forbidden no sum is larger, and any token has a score of -inf
        tokens = torch.searchsorted(sums, wanted, right=True).clamp(max=lprobs.size(-1) - 1)
        drawn = lprobs.gather(-1, tokens).squeeze(-1)
        return Candidates(scores + drawn, tokens.squeeze(-1), _own_beams(drawn))


@dataclass
class BeamSamplingConfig:
    """Configuration of beam sampling."""

    seed: int = option(1, "seed of what is drawn", minimum=0)


@register_search("beam_sampling", config=BeamSamplingConfig)
class BeamSampling(RandomSearch):
    """A beam search whose candidates are drawn without replacement, in proportion to their probability.

    They stand in the order in which they were drawn, as Hugging Face's do. Adding Gumbel noise to all scores and taking
    the largest sums draws without replacement, whatever the batch (Kool, van Hoof and Welling 2019, section 2.3).

    Args:
        seed: of everything that is drawn.
    """

    additive = True

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        if step == 0:
            lprobs, scores = lprobs[:, :1], scores[:, :1]
        totals = lprobs + scores.unsqueeze(-1)
        return _best(totals + self.noise(step, lprobs), totals, self.num_candidates)[0]


@dataclass
class StochasticBeamConfig:
    """Configuration of stochastic beam search."""

    seed: int = option(1, "seed of what is drawn", minimum=0)


@register_search("stochastic_beam", config=StochasticBeamConfig)
class StochasticBeam(RandomSearch):
    """Draws ``beam`` different outputs, as if without replacement from all outputs (Kool, van Hoof and Welling 2019).

    Every beam has a log-probability and a perturbed one: that of an output with Gumbel noise added, namely of the one
    among the outputs beginning with the beam where this is largest. Those of a beam's continuations are drawn under the
    condition that their largest is the beam's own (section 4). The ``beam`` largest of a sentence are kept: what has
    ended among them stays, and the others go on.

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
        normalizer = lprobs.logsumexp(-1, keepdim=True)
        normalizer = normalizer.masked_fill(normalizer == -torch.inf, 0.0)
        own = lprobs - normalizer + self.lprobs.unsqueeze(-1)
        perturbed = with_maximum(own + self.noise(step, lprobs), self.perturbed.unsqueeze(-1))
        candidates, best = _best(perturbed, lprobs + scores.unsqueeze(-1), self.num_candidates)
        least = torch.cat([self.ended, best], dim=1).topk(lprobs.size(1), dim=1).values[:, -1:]
        dropped = (best < least) | (best == -torch.inf)
        self.candidates = Candidates(
            candidates.scores.masked_fill(dropped, -torch.inf), candidates.tokens, candidates.beams
        )
        self.candidate_perturbed = best.masked_fill(dropped, -torch.inf)
        self.candidate_lprobs = own.flatten(1).gather(1, candidates.beams * lprobs.size(-1) + candidates.tokens)
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

    def take(self, candidates: Candidates, ends: Tensor, step: int, bonus: Tensor | None = None) -> Candidates:
        """See ``FinishedHypotheses.take``."""
        self._widened(candidates.scores.dtype)
        finished = ends & (candidates.scores > -torch.inf)
        scores = self.ranking.score(candidates.scores, step + 1)
        new = {
            "lengths": torch.where(finished, step + 1, 0),
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
        columns = ends.to(torch.int8).argsort(dim=1, stable=True)[:, : self.beam]  # what goes on stands first
        chosen = candidates.gather(columns)
        return Candidates(chosen.scores.masked_fill(ends.gather(1, columns), -torch.inf), chosen.tokens, chosen.beams)

    def done(self, going_on: Candidates, step: int, max_lengths: Tensor) -> Tensor:
        """No beam goes on."""
        return (max_lengths <= step) | (going_on.scores == -torch.inf).all(1)

    def select(self, keep: Tensor) -> None:
        """See ``FinishedHypotheses.select``."""
        super().select(keep)
        self.perturbed = self.perturbed.index_select(0, keep)


def with_maximum(values: Tensor, maximum: Tensor) -> Tensor:
    """Independent Gumbel variables, moved such that they are distributed as if their largest were known.

    Args:
        values: ``(..., V)`` the variables; ``-inf`` where there is none.
        maximum: ``(..., 1)`` what their largest is to be; ``-inf`` where there is none.

    Returns:
        ``(..., V)``: for values ``G`` with the maximum ``Z``, and ``T`` the wanted one,
        ``-log(exp(-T) - exp(-Z) + exp(-G))`` (Kool, van Hoof and Welling 2019, section 4 and appendix B.3).
    """
    below = values - values.amax(-1, keepdim=True)
    # v = T - G + log(1 - exp(G - Z)), and the result is T - max(0, v) - log(1 + exp(-|v|))
    v = maximum - values + (-below.expm1()).log()
    moved = maximum - v.clamp(min=0.0) - (-v.abs()).exp().log1p()
    return moved.masked_fill((values == -torch.inf) | (maximum == -torch.inf), -torch.inf)


def _best(keys: Tensor, totals: Tensor, count: int) -> tuple[Candidates, Tensor]:
    """The continuations with the largest keys.

    Args:
        keys: ``(sentences, beam, V)`` what they are chosen by.
        totals: ``(sentences, beam, V)`` their scores.
        count: how many are wanted.

    Returns:
        ``count`` candidates of each sentence, and their keys, the largest first; both ``-inf`` where there are fewer.
    """
    vocab = keys.size(-1)
    best, entries = keys.flatten(1).topk(min(count, keys[0].numel()), dim=1)
    # (sentences, beam * V): entry 2 * V + 7 is token 7 after beam 2
    candidates = Candidates(totals.flatten(1).gather(1, entries), entries % vocab, entries // vocab).padded(count)
    return candidates, torch.nn.functional.pad(best, (0, count - best.size(1)), value=-torch.inf)


def _own_beams(values: Tensor) -> Tensor:
    """Each of ``(sentences, beam)`` candidates continues the beam in whose place it stands."""
    return torch.arange(values.size(1), device=values.device).expand_as(values).contiguous()
