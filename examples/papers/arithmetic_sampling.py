"""Arithmetic sampling: samples that are spread evenly over the model's distribution, each decoded independently.

Vilnis, Zemlyanskiy, Murray, Passos and Sanghai 2023, "Arithmetic Sampling: Parallel Diverse Decoding for Large Language
Models". The model divides the unit interval among its outputs, in the order of the vocabulary, as an arithmetic code
does: the output ``y`` owns an interval of length ``p(y)``. Beam ``i`` of ``N`` decodes the output that owns the code ::

    c_i = (i / N + u) mod 1,    u uniform, one for each sentence
    token  v with  F(v - 1) <= c < F(v),    F(v) = p(0) + ... + p(v) given the prefix
    then   c <- (c - F(v - 1)) / p(v)

Each sample has the model's distribution, and an output with probability ``p`` is drawn ``floor(N p)`` or ``ceil(N p)``
times, so that N-best lists have fewer duplicates and averages over samples have a smaller variance. (The authors' code
divides by ``N + 1``, which leaves one wider gap.) ::

    seqgen-generate common.user_dir=examples/papers/arithmetic_sampling.py path=runs/a input=test.en
        generation.search=arithmetic generation.sampling=true generation.temperature=0.5 generation.beam=8
        generation.nbest=8

The keys of sampling work as well: ``generation.sampling=true generation.temperature=0.7 generation.top_p=0.9``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.extend import (
    BatchInfo,
    Candidates,
    RandomSearch,
    Scores,
    StepContext,
    option,
    own_beams,
    register_search,
    uniform,
)

SHIFT, CODE = 11, 12
"""Purposes of random numbers: the shift of a sentence's codes, and a code that is drawn again."""

_BELOW_ONE = 1 - 2.0**-50
"""The largest code, far enough from 1 that a product with it is not rounded up to the next token's bound."""


@dataclass
class ArithmeticConfig:
    """Configuration of arithmetic sampling; its fields are the keys ``search.FIELD``."""

    resolution: float = option(
        2.0**-12, "the code of a prefix less probable than this is drawn again; 0: never", minimum=0, maximum=1
    )
    seed: int = option(1, "seed of the random numbers", minimum=0)


@register_search("arithmetic", config=ArithmeticConfig)
class ArithmeticSampling(RandomSearch):
    """Decodes the outputs that have evenly spaced codes.

    Each step divides the rounding error of a code by the probability of the token. So that an output does not depend
    on rounding, the code of a prefix that is much less probable than the distance of the codes is drawn again, uniform
    in [0, 1). This leaves the distribution of each sample as it is, since no other code is in the prefix's interval.

    Args:
        resolution: probability of a prefix below which its code is drawn again at each step; 0 for the paper's method.
        seed: seed of the random numbers, which also depend on the line number.
    """

    continues_each_beam = True  # beam i always follows code i
    can_merge = True  # `step` counts the tokens of each sentence by `context.steps`
    beam_state = ("codes",)
    codes: Tensor  # (sentences, beam) float64 in [0, 1): the position of each code in the interval of its prefix

    def __init__(self, resolution: float = 2.0**-12, seed: int = 1):
        super().__init__(seed)
        self.resolution = resolution

    def begin(self, batch: BatchInfo) -> Self:
        """Give each beam its code: the authors' lattice of evenly spaced points with a random shift."""
        search = super().begin(batch)
        points = torch.arange(batch.beam_size, device=batch.device).double() / batch.beam_size
        shift = search.uniforms(SHIFT, 0, torch.zeros(1, dtype=torch.int64, device=batch.device))  # (sentences, 1)
        search.codes = (points + shift) % 1.0
        return search

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """Choose the token whose interval contains the code of the beam.

        Args:
            context: the step.
            scores: the scores of the next token after each beam.

        Returns:
            One candidate for each beam, ``(sentences, beam)``.
        """
        lprobs, so_far = scores.distribution(), scores.beams
        beams = torch.arange(so_far.size(1), device=so_far.device)
        steps = context.by_sentence(context.steps)  # unlike `context.step`, the same when sentences join the batch
        new = uniform(self.seed, CODE, steps, self.ids.unsqueeze(1), beams)
        codes = new.where(so_far < math.log(self.resolution), self.codes) if self.resolution else self.codes
        # (sentences, beam, V + 1): token v owns the interval from bounds[v] to bounds[v + 1]
        bounds = torch.nn.functional.pad(lprobs.double().exp().cumsum(-1), (1, 0))
        total = bounds[..., -1:]
        target = codes.unsqueeze(-1) * total
        tokens = (torch.searchsorted(bounds, target, right=True) - 1).clamp(0, lprobs.size(-1) - 1)
        low, high = bounds.gather(-1, tokens), bounds.gather(-1, tokens + 1)
        self.codes = ((target - low) / (high - low)).squeeze(-1).clamp(0.0, _BELOW_ONE)
        gained = lprobs.gather(-1, tokens).where(total.isfinite(), torch.nan).squeeze(-1)  # NaN: reported as an error
        return Candidates(so_far + gained, tokens.squeeze(-1), own_beams(so_far))
