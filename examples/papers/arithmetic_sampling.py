"""Arithmetic sampling: samples that are spread evenly over the model's distribution, each decoded independently.

Vilnis, Zemlyanskiy, Murray, Passos and Sanghai 2023, "Arithmetic Sampling: Parallel Diverse Decoding for Large Language
Models". The model divides the unit interval among its outputs, in the order of the vocabulary, as an arithmetic code
does: the output ``y`` owns an interval of length ``p(y)``. Beam ``i`` of ``N`` decodes the output that owns the code ::

    c_i = (i / N + u) mod 1,    u uniform, one for each sentence
    token  v with  F(v - 1) <= c < F(v),    F(v) = p(0) + ... + p(v) given the prefix
    then   c <- (c - F(v - 1)) / p(v)

Each sample has the model's distribution, and an output with probability ``p`` is drawn ``floor(N p)`` or ``ceil(N p)``
times, so that N-best lists have fewer duplicates and averages over samples have a smaller variance::

    seqgen-generate common.user_dir=examples/papers/arithmetic_sampling.py path=runs/a input=test.en \
        generation.search=arithmetic generation.beam=8 generation.nbest=8 format=json

The keys of sampling work as well: ``generation.sampling=true generation.temperature=0.7 generation.sampling_topp=0.9``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.candidates import Candidates
from seqgen.generation.component import BatchInfo
from seqgen.generation.context import StepContext
from seqgen.generation.search.beam import own_beams
from seqgen.generation.search.randomness import uniform
from seqgen.generation.search.sampling import RandomSearch
from seqgen.registry import register_search

SHIFT, REFILL = 11, 12
"""Purposes of random numbers: the shift of a sentence's codes, and the low-order bits of a code."""

_RESOLUTION = 2.0**-52
"""Distance of neighbouring codes in float64."""


@dataclass
class ArithmeticConfig:
    """Configuration of arithmetic sampling; its fields are the keys ``search.FIELD``."""

    seed: int = option(1, "seed of the shift of each sentence's codes", minimum=0)


@register_search("arithmetic", config=ArithmeticConfig)
class ArithmeticSampling(RandomSearch):
    """Decodes the outputs that own evenly spaced codes.

    Args:
        seed: seed of the random numbers, which also depend on the line number.
    """

    independent_rows = True  # beam i always follows code i
    can_merge = True  # `step` counts the tokens of each sentence by `context.steps`
    beam_state = ("codes",)
    codes: Tensor  # (sentences, beam) float64 in [0, 1): the position of each code in the interval of its prefix

    def begin(self, batch: BatchInfo) -> Self:
        """Give each beam its code: the authors' lattice of evenly spaced points with a random shift."""
        search = super().begin(batch)
        points = torch.arange(batch.beam_size, device=batch.device).double() / batch.beam_size
        shift = search.uniforms(SHIFT, 0, torch.zeros(1, dtype=torch.int64, device=batch.device))  # (sentences, 1)
        search.codes = (points + shift) % 1.0
        return search

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """Choose the token whose interval contains the code of the beam.

        Args:
            context: the step.
            lprobs: ``(sentences, beam, V)`` log-probabilities of the next token.
            scores: ``(sentences, beam)`` cumulative scores.

        Returns:
            One candidate for each beam, ``(sentences, beam)``.
        """
        # (sentences, beam, V + 1): token v owns the interval from bounds[v] to bounds[v + 1]
        bounds = torch.nn.functional.pad(lprobs.double().exp().cumsum(-1), (1, 0))
        total = bounds[..., -1:]
        target = (self.codes.unsqueeze(-1) * total).minimum(total * (1 - _RESOLUTION))
        tokens = (torch.searchsorted(bounds, target, right=True) - 1).clamp(0, lprobs.size(-1) - 1)
        low, high = bounds.gather(-1, tokens), bounds.gather(-1, tokens + 1)
        codes = (target - low) / (high - low)
        self.codes = self.refilled(codes, (high - low) / total, context).squeeze(-1)
        gained = lprobs.gather(-1, tokens).where(total.isfinite(), torch.nan).squeeze(-1)  # NaN: reported as an error
        return Candidates(scores + gained, tokens.squeeze(-1), own_beams(scores))

    def refilled(self, codes: Tensor, widths: Tensor, context: StepContext) -> Tensor:
        """Fill the low-order bits of the codes, which the choice of a token has used up, with random bits.

        A float64 has 52 bits, and a token of probability ``p`` uses ``log2(1 / p)`` of them. Without new bits, the
        tokens after the first 52 bits would be determined by rounding.

        Args:
            codes: ``(sentences, beam, 1)`` codes in the chosen interval.
            widths: ``(sentences, beam, 1)`` probability of the chosen token.
            context: the step.

        Returns:
            ``(sentences, beam, 1)`` codes in [0, 1).
        """
        beams = torch.arange(codes.size(1), device=codes.device)
        bits = uniform(self.seed, REFILL, context.by_sentence(context.steps), self.ids.unsqueeze(1), beams)
        return (codes + bits.unsqueeze(-1) * _RESOLUTION / widths).clamp(0.0, 1 - _RESOLUTION)
