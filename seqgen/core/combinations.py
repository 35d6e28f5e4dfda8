"""Combinations: how the scores of an ensemble's members become one distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.core.component import Component, Composite
from seqgen.core.context import StepContext
from seqgen.core.contract import Flags, returned_tensor
from seqgen.core.errors import ConfigError
from seqgen.registry import register_combination


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
    return returned_tensor(combination, "__call__", found, like.shape, dtype, like.device)


@dataclass
class MeanConfig:
    """Configuration of the mean of probabilities."""

    weights: list[float] = option([], "weight of each member, scaled to sum to one; empty for equal weights", minimum=0)


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


@register_combination("probability", config=MeanConfig)
class ProbabilityMean(Mean):
    """The weighted arithmetic mean of probabilities: ``log sum_i w_i p_i``."""

    certifiable = True

    def mean(self, weighted: Sequence[tuple[float, Tensor]]) -> Tensor:
        """See ``Mean.mean``."""
        total = weighted[0][1] + math.log(weighted[0][0])
        for weight, scores in weighted[1:]:
            total = torch.logaddexp(total, scores + math.log(weight))
        return total


@dataclass
class LogProbabilityMeanConfig(MeanConfig):
    """Configuration of the mean of log-probabilities."""


@register_combination("log", config=LogProbabilityMeanConfig)
class LogProbabilityMean(Mean):
    """The weighted geometric mean of probabilities, renormalized: ``log softmax(sum_i w_i log p_i)``."""

    certifiable = True

    def mean(self, weighted: Sequence[tuple[float, Tensor]]) -> Tensor:
        """See ``Mean.mean``."""
        mean = weighted[0][1] * weighted[0][0]
        for weight, scores in weighted[1:]:
            mean = mean.add(scores, alpha=weight)
        return mean.log_softmax(-1)


@dataclass
class FusionConfig:
    """Configuration of fusion."""

    weight: float = option(
        0.3, "weight of the log-probabilities of all members but the first; a negative weight subtracts them"
    )
    weights: list[float] = option(
        [], "weights of the second, third, ... member; empty to use combination.weight for all"
    )


@register_combination("fusion", config=FusionConfig)
class Fusion(Combination):
    """The first member's log-probabilities and a weighted sum of the others': ``log p_1 + sum_i w_i log p_i``.

    The sum is not renormalized. With a language model as the second member this is shallow fusion (Gulcehre et al.
    2015, equation 5). A negative weight contrasts the first member with another one (Li et al. 2023, equation 2,
    without its plausibility constraint). A token that one of the other members forbids is forbidden only if that
    member's weight is positive.

    Args:
        weight: ``w_i`` of every member but the first.
        weights: ``w_i`` of each member but the first, in place of ``weight``.
    """

    keeps_single = True
    can_merge = True
    ignores_context = True
    takes_columns = True

    def __init__(self, weight: float = 0.3, weights: Sequence[float] = ()):
        self.weight, self.weights = weight, list(weights)

    @property
    def certifiable(self) -> bool:  # type: ignore[override]
        """True if no weight is negative."""
        return min(self.weights or [self.weight]) >= 0

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """See ``Combination``."""
        others = lprobs[1:]
        weights = self.weights or [self.weight] * len(others)
        if len(weights) != len(others):
            raise ConfigError(
                f"combination.weights has {len(weights)} weights for {len(others)} members after the first; give one "
                "for each of them, or combination.weight for all"
            )
        fused = lprobs[0]
        for weight, other in zip(weights, others, strict=True):
            if weight < 0:  # -inf * weight would be inf: the scores are limited so that their product stays finite
                other = other.clamp(min=torch.finfo(other.dtype).min / (1 - weight))
            fused = fused.add(other, alpha=weight) if weight else fused
        return fused


class Guidance(Composite, Combination):
    """Classifier-free guidance: contrasts each model with itself on an empty source (Sanchez et al. 2023).

    The first half of the members reads the source and gives ``p``; the second half reads an empty source and gives
    ``q``. The scores are ``scale * (log p - log q) + log q``, not normalized; where ``p`` or ``q`` is 0, ``log p``.

    Args:
        inner: combines the members of each half.
        scale: 1 gives the conditional distribution ``p``, 0 the unconditional distribution ``q``.
    """

    def __init__(self, inner: Combination, scale: float):
        self.parts, self.scale = [inner], scale
        self.can_merge = inner.can_merge
        self.ignores_context, self.takes_columns = inner.ignores_context, inner.takes_columns

    @property
    def certifiable(self) -> bool:  # type: ignore[override]
        """True if the scale does not raise the scores of a certifiable combination."""
        return self.inner.certifiable and 0 <= self.scale <= 1

    @property
    def inner(self) -> Combination:
        """The combination of each half."""
        inner: Combination = self.parts[0]
        return inner

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """See ``Combination``."""
        half = len(lprobs) // 2
        conditional, unconditional = (combine(self.inner, part, context) for part in (lprobs[:half], lprobs[half:]))
        guided = self.scale * (conditional - unconditional) + unconditional
        return guided.where(conditional.isfinite() & unconditional.isfinite(), conditional)

    def attention_weights(self, members: int) -> list[float]:
        """The weights of the conditional half; those of the other half are 0."""
        half = members // 2
        return [*self.inner.attention_weights(half), *[0.0] * half]
