"""A model of its own that rates the most probable continuations of each beam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from seqgen.core.component import Composite
from seqgen.core.context import StepContext
from seqgen.core.contract import Flags, check_returned_tensor
from seqgen.core.processors import LogitsProcessor


class Critic(Composite, LogitsProcessor):
    """Adds values to the scores of the ``k`` best tokens of each row, and forbids all others.

    A subclass implements ``values``, for which it reads an ``OwnMember`` among its parts.

    Args:
        parts: the components that it reads.
        k: candidates of each row; at least two for each beam, so that a search always has enough of them.
        weight: the factor of the values.
    """

    flags: ClassVar[Flags] = {"can_merge": ("values",)}

    def __init__(self, parts: Sequence[Any], k: int, weight: float):
        self.parts = [*parts]
        self.k = k
        self.weight = weight

    def values(self, context: StepContext, tokens: Tensor) -> Tensor:
        """Rate candidates.

        Args:
            context: the step context.
            tokens: ``(rows, k)`` int64 candidates of each row, the most probable one first.

        Returns:
            ``(rows, k)`` finite values; larger is better.
        """
        raise NotImplementedError

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor.__call__``."""
        best, tokens = lprobs.topk(min(self.k, lprobs.size(1)), dim=1)
        values = self.values(context, tokens)
        check_returned_tensor(self, "values", values, best.shape, None, best.device)
        return torch.full_like(lprobs, -torch.inf).scatter(1, tokens, best + self.weight * values.to(best.dtype))
