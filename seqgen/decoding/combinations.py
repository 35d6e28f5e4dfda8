"""Combinations besides the mean of probabilities: the mean of log-probabilities, fusion, and guidance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.core.combinations import Combination, Mean, ProbabilityMean, combine
from seqgen.core.component import Composite
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError
from seqgen.registry import register_combination


@dataclass
class MeanConfig:
    """Configuration of the mean of probabilities."""

    weights: list[float] = option([], "weight of each member, scaled to sum to one; empty for equal weights", minimum=0)


register_combination("probability", config=MeanConfig)(ProbabilityMean)


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

    parts: list[Combination]

    def __init__(self, inner: Combination, scale: float):
        self.parts, self.scale = [inner], scale
        self.can_merge = inner.can_merge
        self.ignores_context, self.takes_columns = inner.ignores_context, inner.takes_columns

    @property
    def certifiable(self) -> bool:  # type: ignore[override]
        """True if the scale does not raise the scores of a certifiable combination."""
        return self.parts[0].certifiable and 0 <= self.scale <= 1

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """See ``Combination``."""
        half = len(lprobs) // 2
        conditional, unconditional = (combine(self.parts[0], part, context) for part in (lprobs[:half], lprobs[half:]))
        guided = self.scale * (conditional - unconditional) + unconditional
        return guided.where(conditional.isfinite() & unconditional.isfinite(), conditional)

    def attention_weights(self, members: int) -> list[float]:
        """The weights of the conditional half; those of the other half are 0."""
        half = members // 2
        return [*self.parts[0].attention_weights(half), *[0.0] * half]
