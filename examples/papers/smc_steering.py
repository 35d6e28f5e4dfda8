"""Sequential Monte Carlo steering: weighted samples of the model's outputs under a condition that the user writes.

Lew, Zhi-Xuan, Grand and Mansinghka 2023, "Sequential Monte Carlo Steering of Large Language Models using Probabilistic
Programs". The target is the posterior ``p(y | x) phi(y) / Z``. The ``N`` beams of a sentence are weighted particles. At
each step, each active particle ``s`` draws ``K`` children; of all children and ended particles ``N`` survive ::

    child:    w(s v) = w(s) phi(s v) / phi(s) * p(v | s) / pi(v)
    survivor: w <- w / pi,    pi = min(1, c w),  where c makes the sum of pi equal to N (Fearnhead and Clifford 2003)

where ``pi`` is the probability of being drawn (the paper draws children independently). The score of an output is its
log weight; weights sum to an unbiased estimate of ``Z``. The example prefers short words::

    seqgen-generate common.user_dir=examples/papers/smc_steering.py path=runs/a input=test.en format=json \
        generation.search=short_words search.longest=8 search.penalty=3 generation.beam=10 generation.nbest=10
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.extend import (
    BatchInfo,
    Candidates,
    ConfigError,
    EachRow,
    RandomSearch,
    Ranking,
    Resources,
    Scores,
    StepContext,
    option,
    register_search,
)


def resample(log_weights: Tensor, count: int, points: Tensor, distinct: bool = True) -> tuple[Tensor, Tensor]:
    """Draw ``count`` of the ``M`` items of each row, without change of the expected weight of each item.

    ``log_weights`` is ``(rows, M)`` float64; ``points`` ``(rows, count)`` ascends in [0, count), at distances of 1 if
    ``distinct``: no item is then drawn twice. Returns the drawn items ``(rows, count)`` and their new log weights.
    """
    weights = (log_weights - log_weights.amax(1, keepdim=True).clamp(min=-1e300)).exp()
    expected = weights * (count / weights.sum(1, keepdim=True))  # how often each item is drawn
    for _ in range(count if distinct else 0):  # items that are drawn for certain leave the other draws to the rest
        certain = expected >= 1
        rest = weights.masked_fill(certain, 0.0)
        scale = (count - certain.sum(1, keepdim=True)) / rest.sum(1, keepdim=True)
        expected = (rest * scale).masked_fill(certain, 1.0)
    expected = expected.masked_fill(weights == 0, 0.0)
    drawn = torch.searchsorted(expected.cumsum(1), points, right=True)
    found = torch.nn.functional.pad(log_weights - expected.log(), (0, 1), value=-torch.inf).gather(1, drawn)
    return drawn.clamp(max=weights.size(1) - 1), found


class SMCSteering(RandomSearch):
    """Sequential Monte Carlo over prefixes; a subclass defines ``potential``."""

    sentence_state = ("ids", "weights", "potentials")  # (sentences, beam) float64 logs of w and phi of each particle

    def __init__(self, cfg: Any, resources: Resources):
        super().__init__(cfg.seed)
        self.cfg, self.decode = cfg, resources.decode or str
        self.weights = self.potentials = torch.zeros(0, 0)

    @classmethod
    def build(cls, cfg: Any, resources: Resources) -> Self:
        """See ``Component.build``."""
        return cls(cfg, resources)

    def potential(self, tokens: Tensor, context: StepContext) -> Tensor:
        """``log phi``, ``(rows,)``, of prefixes ``(rows, step + 1)``; before the end, it only guides the search."""
        raise NotImplementedError

    def begin(self, batch: BatchInfo) -> Self:
        """Begin with one particle of weight 1, since all prefixes are equal."""
        search = super().begin(batch)
        search.weights = torch.eye(1, batch.beam_size, device=batch.device).log().double().repeat(len(search.ids), 1)
        search.potentials = torch.zeros_like(search.weights)
        return search

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> Population:
        """See ``Search.finished``."""
        if ranking.coverage or ranking.len_penalty != 1 or early_stopping != "false":
            raise ConfigError(
                "outputs are ranked by weight; remove length_penalty, coverage_penalty and early_stopping"
            )
        return Population(batch, ranking, self)

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """Extend all active particles and choose the survivors, ``(sentences, beam)``; see ``Search.step``."""
        lprobs, so_far = scores.lprobs(), scores.beams
        beam, size = lprobs.size(1), min(self.cfg.children, lprobs.size(2))
        places = torch.arange(beam, device=lprobs.device)
        points = self.uniforms(21, context.step, places).view(-1, 1) + torch.arange(size, device=lprobs.device)
        tokens, gained = (x.view(-1, beam, size) for x in resample(lprobs.flatten(0, 1).double(), size, points))
        prefixes = torch.cat([context.tokens.repeat_interleave(size, 0), tokens.view(-1, 1)], dim=1)
        found = self.potential(prefixes, context).double().view_as(tokens)
        ended = torch.nn.functional.pad(self.weights.unsqueeze(2), (0, size - 1), value=-torch.inf)
        weights = (self.weights - self.potentials).unsqueeze(2) + gained + found  # (sentences, beam, size)
        weights = weights.where((so_far != -torch.inf).unsqueeze(2), ended).flatten(1)
        points = self.uniforms(22, context.step, places)
        points = points.sort(1).values * beam if self.cfg.resampling == "multinomial" else points[:, :1] + places
        chosen, survived = resample(weights, beam, points, self.cfg.resampling == "optimal")
        moves = (so_far != -torch.inf).any(1, keepdim=True)  # false: all particles have ended, and nothing changes
        chosen, self.weights = chosen.where(moves, places * size), survived.where(moves, self.weights)
        empty = self.weights == -torch.inf
        self.potentials = found.flatten(1).gather(1, chosen).masked_fill(empty, 0.0)
        totals = (so_far.unsqueeze(2) + lprobs.gather(2, tokens)).flatten(1).gather(1, chosen)
        empty &= ~totals.isnan()  # scores of a damaged model are an error
        return Candidates(totals.masked_fill(empty, -torch.inf), tokens.flatten(1).gather(1, chosen), chosen // size)


class Population(EachRow):
    """The ended particles, each in its place, of ``search``."""

    def __init__(self, batch: BatchInfo, ranking: Ranking, search: SMCSteering):
        super().__init__(batch, ranking)
        self.search = search

    def finalize(self, candidates: Candidates, ends: Tensor, *args: Any) -> Candidates:
        """Move ended particles to the places where they survive, and add those that end now."""
        for name in ("lengths", "beams", "tokens", "cumulative"):
            setattr(self, name, getattr(self, name).gather(1, candidates.beams))
        self.lengths = self.lengths.masked_fill(self.search.weights == -torch.inf, 0)
        active = super().finalize(candidates, ends, *args)
        self.scores = self.search.weights.to(self.cumulative.dtype)
        return active


@dataclass
class SMCConfig:
    """Keys ``search.FIELD`` of every condition."""

    children: int = option(4, "continuations of each particle at each step", minimum=1)
    resampling: str = option("optimal", "how particles survive", choices=("optimal", "systematic", "multinomial"))
    seed: int = option(1, "seed of the random numbers", minimum=0)


@dataclass
class ShortWordsConfig(SMCConfig):
    """Keys of the example."""

    longest: int = option(8, "letters of the longest word that is not penalized", minimum=1)
    penalty: float = option(3.0, "cost of each longer word, in nats", minimum=0)


@register_search("short_words", config=ShortWordsConfig)
class ShortWords(SMCSteering):
    """The posterior ``p(y | x) exp(-penalty * number of words of y with more than longest letters)``."""

    def potential(self, tokens: Tensor, context: StepContext) -> Tensor:
        """See ``SMCSteering.potential``."""
        texts = [self.decode([token for token in row if token != context.eos]) for row in tokens.tolist()]
        long = [sum(len(word) > self.cfg.longest for word in text.split()) for text in texts]
        return torch.tensor(long, device=tokens.device) * -float(self.cfg.penalty)
