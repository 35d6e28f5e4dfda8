"""A combination of an ensemble's members: the power mean of their probabilities (Hardy, Littlewood and Pólya 1934).

``seqgen-generate common.user_dir=examples/extending/combination.py path=[runs/a,runs/b] input=test.en
generation.combination=power_mean combination.power=-4.0``
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import Combination, ConfigError, StepContext, option, register_combination


@dataclass
class PowerMeanConfig:
    """Configuration of the power mean; its fields are the keys ``combination.FIELD``."""

    power: float = option(-1.0, "exponent: 1 is the arithmetic mean, -1 the harmonic mean; not 0")


@register_combination("power_mean", config=PowerMeanConfig)
class PowerMean(Combination):
    """``log (mean_i p_i^r)^(1/r)``, not renormalized: the lower ``r``, the closer to the smallest ``p_i``.

    Args:
        power: the exponent ``r``, not 0.

    Raises:
        ConfigError: ``power`` is 0.
    """

    keeps_single = True  # the power mean of one distribution is that distribution
    ignores_context = True

    def __init__(self, power: float):
        if power == 0:
            raise ConfigError("combination.power=0 has no power mean; use generation.combination=log for its limit")
        self.power = power

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """Combine the members' scores of the next token.

        Args:
            lprobs: from each member ``(..., V)`` log-probabilities in nats.
            context: not read, so that it can be ``None`` (``ignores_context``).

        Returns:
            ``(..., V)`` scores in nats.
        """
        total = torch.stack([self.power * scores for scores in lprobs]).logsumexp(0)
        return (total - math.log(len(lprobs))) / self.power
