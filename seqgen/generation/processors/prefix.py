"""Forced prefixes, and the processors that they override."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor, ProcessorList, apply_all


class ForcePrefix(ProcessorList):
    """Forces the prefix of each sentence (``prefix_tokens``), whose tokens keep the model's score.

    Args:
        otherwise: processors that apply only to rows whose prefix is complete.
    """

    shift_invariant = ProcessorList.shift_invariant
    can_merge = ProcessorList.can_merge
    token_attributes = ()  # with a prefix, all scores are computed

    def __init__(self, otherwise: Sequence[LogitsProcessor] = ()):
        super().__init__(otherwise)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        prefix = context.prefix_tokens
        if prefix is None or context.step >= prefix.size(1):
            return apply_all(self.processors, lprobs, context)
        forced = prefix[:, context.step]
        bound = (forced != context.pad) & (context.max_lengths > context.step)
        scores = lprobs.gather(1, forced.unsqueeze(1))
        only = torch.full_like(lprobs, -torch.inf).scatter_(1, forced.unsqueeze(1), scores)
        return torch.where(bound.unsqueeze(1), only, apply_all(self.processors, lprobs, context))
