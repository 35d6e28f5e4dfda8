"""Processors of single tokens: some are forbidden, the unknown word is penalized."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor

_FEW = 4


class Forbid(LogitsProcessor):
    """Some tokens are never written.

    Args:
        tokens: their ids.
    """

    shift_invariant = True
    can_merge = True

    def __init__(self, tokens: Sequence[int]):
        self.tokens = list(tokens)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        for token in self.tokens[:_FEW]:  # one by one, without a table that must first go to the device
            lprobs[:, token] = -torch.inf
        if len(self.tokens) > _FEW:
            lprobs[:, self.tokens[_FEW:]] = -torch.inf
        return lprobs


class ForbidFirst(LogitsProcessor):
    """Some tokens are not written at one step.

    Args:
        tokens: their ids.
        step: the step; 0 for the first token.
    """

    shift_invariant = True

    def __init__(self, tokens: Sequence[int], step: int = 0):
        self.tokens, self.step = list(tokens), step

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step == self.step:
            lprobs[:, self.tokens] = -torch.inf
        return lprobs


class UnknownPenalty(LogitsProcessor):
    """The unknown word loses (below zero: gains) a constant.

    Args:
        unk: its id.
        penalty: what is subtracted, in nats.
    """

    shift_invariant = True
    can_merge = True

    def __init__(self, unk: int, penalty: float):
        self.unk, self.penalty = unk, penalty

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        lprobs[:, self.unk] -= self.penalty
        return lprobs
