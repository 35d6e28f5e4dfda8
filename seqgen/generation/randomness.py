"""Random numbers that are a function of what they are for, so that no batch, order or device changes them.

There is no generator with a state: a number depends on a seed and on some counters, such as the line, the step and the
beam. The mixing function is that of SplitMix64 (Steele, Lea and Flood 2014, figure 17), in whole numbers of 64 bits
whose products wrap around alike everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

TOKEN, GUMBEL, DRAFT = 1, 2, 3
"""Counters that keep apart what numbers are drawn for: a token, noise for every token, a decision about a draft."""

_BITS = 52
"""Of so many bits a number is made; half a unit more lies in the middle between two of them."""


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


def uniform(seed: int, *counters: int | Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random numbers between 0 and 1, neither of which occurs.

    Args:
        seed: see ``random_bits``.
        counters: see ``random_bits``.
        dtype: of the result; the same number in another format differs by rounding alone.
    """
    bits = random_bits(seed, *counters).bitwise_and(2**_BITS - 1)
    return ((bits.to(dtype) + 0.5) * 2.0**-_BITS).clamp_(max=1 - torch.finfo(dtype).eps / 2)


def gumbel(seed: int, *counters: int | Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random numbers of the standard Gumbel distribution, with the cumulative probability ``exp(-exp(-x))``.

    Added to log-probabilities, their largest sum is a draw from these, and the ``k`` largest are ``k`` draws without
    replacement.

    Args:
        seed: see ``random_bits``.
        counters: see ``random_bits``.
        dtype: of the result.
    """
    # log1p of -u and not log of u: the largest numbers come from small u, which every format holds exactly enough
    return uniform(seed, *counters, dtype=dtype).neg_().log1p_().neg_().log_().neg_()


def _mix(state: Tensor) -> Tensor:
    mixed = state + _GOLDEN
    mixed = mixed.bitwise_xor(_shifted(mixed, 30)) * _FIRST
    mixed = mixed.bitwise_xor(_shifted(mixed, 27)) * _SECOND
    return mixed.bitwise_xor(_shifted(mixed, 31))


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Shifted to the right with zeros coming in from the left, where ``>>`` brings in the sign."""
    return state.bitwise_right_shift(bits).bitwise_and(2 ** (64 - bits) - 1)
