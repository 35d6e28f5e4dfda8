"""A stopping rule: an output ends when its last tokens are one n-gram, repeated.

``seqgen-generate common.user_dir=examples/extending/stopping_rule.py path=runs/a input=test.en
generation.stopping_rules=[loop] stopping.loop.size=2 stopping.loop.times=3``
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import StepContext, StoppingRule, option, register_stopping_rule


@dataclass
class LoopConfig:
    """Configuration of the rule; its fields are the keys ``stopping.loop.FIELD``."""

    size: int = option(1, "tokens in the n-gram that repeats", minimum=1)
    times: int = option(4, "number of consecutive occurrences, the first one included", minimum=2)


@register_stopping_rule("loop", config=LoopConfig)
class LoopRule(StoppingRule):
    """Ends an output whose last ``times * size`` tokens are the same n-gram ``times`` times.

    Args:
        size: tokens in the n-gram.
        times: number of consecutive occurrences.
    """

    def __init__(self, size: int = 1, times: int = 4):
        self.size, self.times = size, times

    def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
        """Decide which candidates end with their newest token.

        Args:
            tokens: ``(rows, step + 1)`` int64 generated tokens of each candidate, the newest last.
            context: the step; its rows are candidates.

        Returns:
            ``(rows,)`` bool.
        """
        window = self.size * self.times
        if tokens.size(1) < window:
            return torch.zeros(tokens.size(0), dtype=torch.bool, device=tokens.device)
        repeats = tokens[:, -window:].view(-1, self.times, self.size)
        return (repeats == repeats[:, :1]).flatten(1).all(1)
