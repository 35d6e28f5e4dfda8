"""Processors of single tokens: forbidden and forced tokens, and the penalty of the unknown token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqgen.generation.component import Composite
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor, apply_all

_FEW = 4


class Forbid(LogitsProcessor):
    """Forbids tokens at every step.

    Args:
        tokens: their ids.
    """

    shift_invariant = True
    can_merge = True
    token_attributes = ("tokens",)

    def __init__(self, tokens: Sequence[int]):
        self.tokens = list(tokens)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        for token in self.tokens[:_FEW]:  # a list index would first be copied to the device
            lprobs[:, token] = -torch.inf
        if len(self.tokens) > _FEW:
            lprobs[:, self.tokens[_FEW:]] = -torch.inf
        return lprobs


class ForbidFirst(LogitsProcessor):
    """Forbids tokens at one step.

    Args:
        tokens: their ids.
        step: the step; 0 for the first token.
    """

    shift_invariant = True
    token_attributes = ("tokens",)

    def __init__(self, tokens: Sequence[int], step: int = 0):
        self.tokens, self.step = list(tokens), step

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step == self.step:
            lprobs[:, self.tokens] = -torch.inf
        return lprobs


class UnknownPenalty(LogitsProcessor):
    """Subtracts a constant from the score of the unknown token.

    Args:
        unk: its id.
        penalty: in nats; negative values reward the token.
    """

    shift_invariant = True
    can_merge = True
    token_attributes = ("unk",)

    def __init__(self, unk: int, penalty: float):
        self.unk, self.penalty = unk, penalty

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        lprobs[:, self.unk] -= self.penalty
        return lprobs


class ForcePrefix(Composite, LogitsProcessor):
    """Forces the prefix of each sentence (``prefix_tokens``), whose tokens keep the model's score.

    Args:
        otherwise: processors that apply only to rows whose prefix is complete.
    """

    token_attributes = ()  # with a prefix, all scores are computed

    def __init__(self, otherwise: Sequence[LogitsProcessor] = ()):
        self.parts: list[LogitsProcessor] = list(otherwise)

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        """Whether all processors are shift invariant."""
        return all(processor.shift_invariant for processor in self.parts)

    @property
    def can_merge(self) -> bool:  # type: ignore[override]
        """Whether all processors support merged batches."""
        return all(processor.can_merge for processor in self.parts)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        prefix = context.prefix_tokens
        if prefix is None or context.step >= prefix.size(1):
            return apply_all(self.parts, lprobs, context)
        forced = prefix[:, context.step]
        bound = (forced != context.pad) & (context.max_lengths > context.step)
        scores = lprobs.gather(1, forced.unsqueeze(1))
        only = torch.full_like(lprobs, -torch.inf).scatter_(1, forced.unsqueeze(1), scores)
        return torch.where(bound.unsqueeze(1), only, apply_all(self.parts, lprobs, context))
