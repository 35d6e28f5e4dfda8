"""Sampling, and beam search over sampled candidates. Random numbers depend on the line number, not on the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.candidates import Candidates
from seqgen.generation.component import BatchInfo
from seqgen.generation.context import StepContext
from seqgen.generation.search.base import Search
from seqgen.generation.search.beam import own_beams
from seqgen.generation.search.randomness import TOKEN, draw, uniform
from seqgen.registry import register_search


class RandomSearch(Search):
    """The base class of random strategies, whose draws depend on a seed and on the line numbers of the sentences.

    Args:
        seed: seed of the random numbers.
    """

    sentence_state: ClassVar[tuple[str, ...]] = ("ids",)

    def __init__(self, seed: int = 1):
        self.seed = seed
        self.num_candidates = 0
        self.ids = torch.zeros(0, dtype=torch.int64)

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Search.begin``."""
        search = super().begin(batch)
        search.num_candidates = batch.num_candidates
        ids = torch.arange(batch.num_sentences) if batch.ids is None else batch.ids
        search.ids = ids.to(batch.device)
        return search

    def uniforms(self, purpose: int, step: int, *counters: Tensor) -> Tensor:
        """Uniform random numbers between 0 and 1 for each sentence.

        Args:
            purpose: which draw they are for; a constant of ``randomness``.
            step: number of tokens of each hypothesis.
            counters: further counters that they depend on, such as the beam: ``(n,)`` int64 each.

        Returns:
            ``(sentences, n, ...)`` float64, one dimension for each of the counters.
        """
        shape = [1] * len(counters)
        spread = [counter.view(*shape[:i], -1, *shape[i + 1 :]) for i, counter in enumerate(counters)]
        return uniform(self.seed, purpose, step, self.ids.view(-1, *shape), *spread)


@dataclass
class SamplingConfig:
    """Configuration of sampling."""

    seed: int = option(1, "seed of the random numbers", minimum=0)


@register_search("sampling", config=SamplingConfig)
class Sampling(RandomSearch):
    """Samples each beam independently, token by token (ancestral sampling).

    Args:
        seed: seed of the random numbers.
    """

    independent_rows = True

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``; one candidate for each beam."""
        beams = torch.arange(lprobs.size(1), device=lprobs.device)
        tokens, left = draw(lprobs.flatten(0, 1), self.uniforms(TOKEN, context.step, beams).view(-1, 1))
        drawn = drawn_scores(lprobs.flatten(0, 1), tokens, left).view_as(scores)
        return Candidates(scores + drawn, tokens.view_as(scores), own_beams(scores))


@dataclass
class BeamSamplingConfig:
    """Configuration of beam sampling."""

    seed: int = option(1, "seed of the random numbers", minimum=0)


@register_search("beam_sampling", config=BeamSamplingConfig)
class BeamSampling(RandomSearch):
    """Beam search whose candidates are drawn without replacement from the softmax of their cumulative scores.

    The candidates are in the order in which they were drawn, as in Hugging Face's beam sampling.

    Args:
        seed: seed of the random numbers.
    """

    additive = True

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        if context.step == 0:
            lprobs, scores = lprobs[:, :1], scores[:, :1]
        vocab = lprobs.size(-1)
        totals = (lprobs + scores.unsqueeze(-1)).flatten(1)
        places = torch.arange(min(self.num_candidates, totals.size(1)), device=totals.device)
        # (sentences, beam * V): entry 2 * V + 7 is token 7 after beam 2
        entries, left = draw(totals, self.uniforms(TOKEN, context.step, places))
        found = Candidates(drawn_scores(totals, entries, left), entries % vocab, entries // vocab)
        return found.padded(self.num_candidates)


def drawn_scores(values: Tensor, entries: Tensor, left: Tensor) -> Tensor:
    """The values of the drawn entries of the last dimension; ``-inf`` where no mass was left, NaN where it was NaN."""
    return values.gather(-1, entries).where(left > -torch.inf, left.to(values.dtype))
