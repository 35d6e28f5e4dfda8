"""Combinations: how the scores of an ensemble's members become one distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from seqgen.core.component import Component
from seqgen.core.context import StepContext
from seqgen.core.contract import Flags, check_returned_tensor
from seqgen.core.errors import ConfigError


class Combination(Component):
    """Combines the members' scores; a subclass implements ``__call__``.

    A combination registered with ``@register_combination`` is selected by its name (``generation.combination``).
    """

    setting = "combination"

    flags: ClassVar[Flags] = {
        "keeps_single": ("__call__",),
        "can_merge": ("__call__", "token_fields"),
        "certifiable": ("__call__",),
        "ignores_context": ("__call__",),
        "takes_columns": ("__call__",),
    }

    keeps_single: bool = False
    """True if the scores of a single member are returned unchanged; then the combination is skipped for one member."""

    can_merge: bool = False
    """True if it supports continuous batching: it must then not read tokens or source ids, and must use
    ``context.steps`` instead of ``context.step``."""

    ignores_context: bool = False
    """True if it does not read the context; all positions of a known target are then combined at once."""

    takes_columns: bool = False
    """True if it treats all tokens alike; with a shortlist, the scores then have fewer columns than the vocabulary has
    tokens."""

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """Combine the members' scores of the next token.

        Args:
            lprobs: ``(..., V)`` log-probabilities in nats of each member, in the order of the members.
            context: the step context. If known targets are scored, a row is a target; ``None`` if ``ignores_context``.

        Returns:
            ``(..., V)`` scores in nats; they need not be normalized.
        """
        raise NotImplementedError

    def attention_weights(self, members: int) -> list[float]:
        """The weight of each member in the average of attention weights; equal by default."""
        return [1.0] * members


def combine(combination: Combination, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
    """Call a combination, and check what it returns; see ``Combination.__call__``."""
    found, like = combination(lprobs, context), lprobs[0]
    dtype = found.dtype if getattr(found, "dtype", None) in {scores.dtype for scores in lprobs} else like.dtype
    return check_returned_tensor(combination, "__call__", found, like.shape, dtype, like.device)


class Mean(Combination):
    """A weighted mean over the members; a subclass implements ``mean``.

    Args:
        weights: weight of each member; scaled to sum to one. Empty for equal weights.
    """

    flags: ClassVar[Flags] = {"certifiable": ("mean",)}

    keeps_single = True
    can_merge = True
    ignores_context = True
    takes_columns = True

    def __init__(self, weights: Sequence[float] = ()):
        self.weights = list(weights)

    def attention_weights(self, members: int) -> list[float]:
        """The members' weights, scaled to sum to one.

        Raises:
            ConfigError: the number of weights is not the number of members, or all weights are zero.
        """
        weights = self.weights or [1.0] * members
        if len(weights) != members or sum(weights) <= 0:
            raise ConfigError(
                f"the weights {weights} (combination.weights) do not fit an ensemble of {members} models; give one "
                "weight for each, not all zero"
            )
        return [weight / sum(weights) for weight in weights]

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """See ``Combination``."""
        if len(lprobs) == 1:
            return lprobs[0]
        pairs = zip(self.attention_weights(len(lprobs)), lprobs, strict=True)
        return self.mean([(weight, scores) for weight, scores in pairs if weight > 0])

    def mean(self, weighted: Sequence[tuple[float, Tensor]]) -> Tensor:
        """The mean of pairs of weight and ``(..., V)`` log-probabilities; the weights sum to one."""
        raise NotImplementedError


class ProbabilityMean(Mean):
    """The weighted arithmetic mean of probabilities: ``log sum_i w_i p_i``."""

    certifiable = True

    def mean(self, weighted: Sequence[tuple[float, Tensor]]) -> Tensor:
        """See ``Mean.mean``."""
        total = weighted[0][1] + math.log(weighted[0][0])
        for weight, scores in weighted[1:]:
            total = torch.logaddexp(total, scores + math.log(weight))
        return total
