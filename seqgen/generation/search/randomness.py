"""Random numbers that are a function of what they are for, so that no batch, order or device changes them; and draws.

There is no generator with a state: a number depends on a seed and on some counters, such as the line, the step and the
beam. The mixing function is that of SplitMix64 (Steele, Lea and Flood 2014, figure 17), in whole numbers of 64 bits
whose products wrap around alike everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

TOKEN, PERTURBATION = 1, 2
"""Counters that keep apart what numbers are for: which token, and how far apart two perturbed log-probabilities are."""

_BITS = 52
"""Of so many bits a number is made; half a unit more lies in the middle between two of them."""

_BLOCK = 256
"""Entries whose probabilities are added up before any is looked at."""


def _signed(value: int) -> int:
    """The signed number of 64 bits that stands for any whole number."""
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def random_bits(seed: int, *counters: int | Tensor) -> Tensor:
    """Mix a seed and counters into bits.

    Args:
        seed: any whole number.
        counters: whole numbers or int64 tensors that broadcast against each other, at least one of them a tensor; it
            matters in which place a counter stands. Those that vary most are best put last.

    Returns:
        int64, of the shape that the counters have together, and on their device.
    """
    device = next(counter.device for counter in counters if isinstance(counter, Tensor))
    state = torch.tensor(_signed(seed), device=device)
    for counter in counters:
        if not isinstance(counter, Tensor):
            counter = torch.tensor(_signed(counter), device=device)
        state = _mix(_mix(state) + counter)
    return state


def uniform(seed: int, *counters: int | Tensor) -> Tensor:
    """Random numbers between 0 and 1, neither of which occurs; float64.

    Args:
        seed: see ``random_bits``.
        counters: see ``random_bits``.
    """
    bits = random_bits(seed, *counters).bitwise_and(2**_BITS - 1)
    return (bits.double() + 0.5) * 2.0**-_BITS


def draw(lprobs: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Draw entries in proportion to their probability, one after the other and none twice.

    Each is found by the inverse of the cumulative distribution, first that of blocks of entries, then that inside one.

    Args:
        lprobs: ``(rows, N)`` log-probabilities, up to a constant for each row.
        numbers: ``(rows, K)`` random numbers between 0 and 1, float64.

    Returns:
        The entries drawn, ``(rows, K)`` int64, and the logarithm of the mass that each was drawn from, ``(rows, K)``
        float64: ``-inf`` where nothing was left to be drawn, NaN where a row holds NaN.
    """
    largest = lprobs.amax(1, keepdim=True).clamp(min=torch.finfo(lprobs.dtype).min).double()
    missing = -lprobs.size(1) % _BLOCK
    # a double tells the last of 10 draws from nothing also where the first has nearly all of the mass
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
        # sums 3 5 9 and a target of 4: block 1, which begins at 3, and in it the first entry beyond 1
        entry = _first_beyond(inside.cumsum(1), target - (before - sums).gather(1, block))
        drawn.append(block * _BLOCK + entry)
        left.append(before[:, -1:].log() + largest)
        rest = inside.scatter(1, entry, 0.0)
        blocks[rows, block.squeeze(1)] = rest
        sums = sums.scatter(1, block, rest.sum(1, keepdim=True))
    return torch.cat(drawn, dim=1).clamp(max=lprobs.size(1) - 1), torch.cat(left, dim=1)


def _first_beyond(sums: Tensor, target: Tensor) -> Tensor:
    """The first of ascending sums ``(rows, N)`` that is larger than ``(rows, 1)`` targets: ``(rows, 1)`` int64.

    Rounding does not lead beyond the last entry with any mass. Sums .5 .5 .8 1. and a target of .5 give 2.
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
    """Shifted to the right with zeros coming in from the left, where ``>>`` brings in the sign."""
    return state.bitwise_right_shift(bits).bitwise_and(2 ** (64 - bits) - 1)
