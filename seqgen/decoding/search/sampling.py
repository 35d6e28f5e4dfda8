"""Sampling, beam search over sampled candidates, and their random numbers.

There is no generator with a state: a random number is a function of a seed and of counters, such as the line, the step
and the beam. Numbers therefore do not depend on the batch, the order or the device. The mixing function is that of
SplitMix64 (Steele, Lea and Flood 2014, figure 17), in 64-bit integers, whose products wrap around in the same way on
every device.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from seqgen.core.candidates import Candidates
from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.scores import Scores, own_beams
from seqgen.core.search import Search
from seqgen.registry import register_search

TOKEN = 1
"""Counter that marks random numbers that draw a token."""

_BITS = 52
"""Bits of a uniform; half a unit is added, so that neither 0 nor 1 occurs."""

_BLOCK = 256
"""Entries of a block; blocks are drawn first, then an entry of the block."""


def _signed(value: int) -> int:
    """Wrap an integer to signed 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def random_bits(seed: int, *counters: int | Tensor) -> Tensor:
    """Mix a seed and counters into bits.

    Args:
        seed: any integer.
        counters: integers or int64 tensors that broadcast against each other, at least one of them a tensor. Their
            order matters; those that vary most should be last, so that fewer numbers are mixed.

    Returns:
        int64, of the broadcast shape of the counters, and on their device.
    """
    state = torch.tensor(_signed(seed))  # on the CPU, as other numbers: a copy to the device would be a transfer
    for counter in counters:
        if not isinstance(counter, Tensor):
            counter = torch.tensor(_signed(counter))
        state = _mix(_mix(state) + counter)
    return state


def uniform(seed: int, *counters: int | Tensor) -> Tensor:
    """Uniform random numbers in the open interval from 0 to 1, float64.

    Args:
        seed: see ``random_bits``.
        counters: see ``random_bits``.
    """
    bits = random_bits(seed, *counters).bitwise_and(2**_BITS - 1)
    return (bits.double() + 0.5) * 2.0**-_BITS


def draw(lprobs: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Draw entries without replacement, in proportion to their probability.

    Each is found by inverting the cumulative distribution, first over blocks of entries, then inside a block.

    Args:
        lprobs: ``(rows, N)`` log-probabilities, up to a constant of each row.
        numbers: ``(rows, K)`` uniforms between 0 and 1, float64.

    Returns:
        The drawn entries, ``(rows, K)`` int64, and the log of the mass that each was drawn from, ``(rows, K)``
        float64: ``-inf`` where no mass was left, NaN where a row has NaN.
    """
    largest = lprobs.amax(1, keepdim=True).clamp(min=torch.finfo(lprobs.dtype).min).double()
    missing = -lprobs.size(1) % _BLOCK
    # float64, so that later draws still have mass where the first entry has nearly all of it
    weights = torch.nn.functional.pad(lprobs, (0, missing), value=-torch.inf).double().sub_(largest).exp_()
    blocks = weights.view(len(weights), -1, _BLOCK)
    sums = blocks.sum(-1)
    rows = torch.arange(len(weights), device=weights.device)
    drawn, left = [], []
    for number in numbers.unsqueeze(2).unbind(1):
        before = sums.cumsum(1)
        target = number * before[:, -1:]
        block = _first_beyond(before, target)
        inside = blocks[rows, block.squeeze(1)]
        # with cumulative sums 3 5 9 and a target of 4: block 1, which begins at 3; in it, the first entry beyond 4 - 3
        entry = _first_beyond(inside.cumsum(1), target - (before - sums).gather(1, block))
        drawn.append(block * _BLOCK + entry)
        left.append(before[:, -1:].log() + largest)
        rest = inside.scatter(1, entry, 0.0)
        blocks[rows, block.squeeze(1)] = rest
        sums = sums.scatter(1, block, rest.sum(1, keepdim=True))
    return torch.cat(drawn, dim=1).clamp(max=lprobs.size(1) - 1), torch.cat(left, dim=1)


def _first_beyond(sums: Tensor, target: Tensor) -> Tensor:
    """The first of ascending sums ``(rows, N)`` that is larger than the target ``(rows, 1)``: ``(rows, 1)`` int64.

    Targets are clamped, so that rounding never selects an entry after the last one with mass. Sums .5 .5 .8 1. and a
    target of .5 give 2.
    """
    below_all = sums[:, -1:] * (1 - 2.0**-_BITS)
    found = torch.searchsorted(sums.contiguous(), target.minimum(below_all), right=True)
    return found.clamp(max=sums.size(1) - 1)


def _mix(state: Tensor) -> Tensor:
    mixed = state + _GOLDEN
    mixed = mixed.bitwise_xor(_shifted(mixed, 30)) * _FIRST
    mixed = mixed.bitwise_xor(_shifted(mixed, 27)) * _SECOND
    return mixed.bitwise_xor(_shifted(mixed, 31))


def _shifted(state: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: ``>>`` would copy the sign bit."""
    return state.bitwise_right_shift(bits).bitwise_and(2 ** (64 - bits) - 1)


class RandomSearch(Search):
    """The base class of random strategies, whose draws depend on a seed and on the line numbers of the sentences.

    Args:
        seed: seed of the random numbers.
    """

    is_stochastic = True
    sentence_state: ClassVar[tuple[str, ...]] = ("ids",)

    def __init__(self, seed: int = 1):
        self.seed = seed
        self.num_candidates = 0
        self.ids = torch.zeros(0, dtype=torch.int64)

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Search.begin``."""
        search = super().begin(batch)
        search.num_candidates = batch.num_candidates
        search.ids = batch.ids
        return search

    def uniforms(self, purpose: int, step: int | Tensor, *counters: Tensor) -> Tensor:
        """Uniform random numbers between 0 and 1 for each sentence.

        Args:
            purpose: which draw they are for, such as ``TOKEN``.
            step: number of tokens of each hypothesis; ``context.steps`` if sentences may join a running batch.
            counters: further counters that they depend on, such as the beam: ``(n,)`` int64 each.

        Returns:
            ``(sentences, n, ...)`` float64, one dimension for each of the counters.
        """
        shape = [1] * len(counters)
        spread = [counter.view(*shape[:i], -1, *shape[i + 1 :]) for i, counter in enumerate(counters)]
        step = step.view(len(self.ids), -1)[:, 0].view(-1, *shape) if isinstance(step, Tensor) else step
        return uniform(self.seed, purpose, step, self.ids.view(-1, *shape), *spread)


@register_search("sampling")
class Sampling(RandomSearch):
    """Samples each beam independently, token by token (ancestral sampling).

    Args:
        seed: seed of the random numbers.
    """

    can_merge = True
    continues_each_beam = True
    stops_early = False
    samples_tokens = True

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``; one candidate for each beam."""
        lprobs, so_far = scores.distribution(), scores.beams
        beams = torch.arange(lprobs.size(1), device=lprobs.device)
        step = context.steps if context.has_joined else context.step
        tokens, left = draw(lprobs.flatten(0, 1), self.uniforms(TOKEN, step, beams).view(-1, 1))
        drawn = drawn_scores(lprobs.flatten(0, 1), tokens, left).view_as(so_far)
        return Candidates(so_far + drawn, tokens.view_as(so_far), own_beams(so_far))


@register_search("beam_sampling")
class BeamSampling(RandomSearch):
    """Beam search whose candidates are drawn without replacement from the softmax of their cumulative scores.

    The candidates are in the order in which they were drawn, as in Hugging Face's beam sampling.

    Args:
        seed: seed of the random numbers.
    """

    can_merge = True

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``."""
        totals = (scores if context.step else scores.of_beams(slice(1))).totals().flatten(1)
        step = context.steps if context.has_joined else context.step
        places = torch.arange(min(self.num_candidates, totals.size(1)), device=totals.device)
        # (sentences, beam * V): entry 2 * V + 7 is token 7 after beam 2
        entries, left = draw(totals, self.uniforms(TOKEN, step, places))
        found = Candidates(drawn_scores(totals, entries, left), entries % scores.size, entries // scores.size)
        return found.padded(self.num_candidates)


def drawn_scores(values: Tensor, entries: Tensor, left: Tensor) -> Tensor:
    """The values of the drawn entries of the last dimension; ``-inf`` where no mass was left, NaN where it was NaN."""
    return values.gather(-1, entries).where(left > -torch.inf, left.to(values.dtype))
