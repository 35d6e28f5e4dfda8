"""Quality-aware decoding (Koneru, Huck, Exel and Niehues 2025, "Quality-Aware Decoding: Unifying Quality Estimation and
Decoding"): beam search with an estimator of the quality of partial translations.

At each step, the k most probable tokens y of each beam get, and all other tokens are forbidden::

    log p(y | y_<t, x) + weight q(x, y_<=t)

where q is the log-probability that the newest token is good. The weight (1 - alpha) / alpha ranks as the paper's
``alpha log p + (1 - alpha) q``. With ``quality``, q is a linear head on the features of a model. With
``quality_of_text``, it is any Python function of the source line and the texts so far: add yours to a copy of this file
with ``@partial_quality(NAME)``, as ``length_ratio`` below.

``python examples/papers/critics/fit.py path=runs/a source=DATA/train.en target=train.out.de references=DATA/train.de
head=quality.safetensors`` fits a head. ``seqgen-generate common.user_dir=examples/papers/critics path=runs/a
input=test.en generation.processors=[quality] processor.quality.head=quality.safetensors processor.quality.weight=0.5``
``seqgen-generate common.user_dir=examples/papers/critics path=runs/a input=test.en
generation.processors=[quality_of_text] processor.quality_of_text.function=length_ratio``

In the paper, a large language model is tuned on translations with marked errors; here a head is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from seqgen.addons.partial_texts import PartialTexts
from seqgen.extend import (
    ConfigError,
    Critic,
    Resources,
    StepContext,
    nearest,
    option,
    register_logits_processor,
)

from .head import HeadConfig, HeadCritic, read_head, read_member

PartialQuality = Callable[[str, Sequence[str]], Sequence[float]]
"""A function of the source and some beginnings of outputs, each with the newest token last; the larger, the better."""

FUNCTIONS: dict[str, PartialQuality] = {}
"""The registered estimators, by name."""


def partial_quality(name: str) -> Callable[[PartialQuality], PartialQuality]:
    """Register a function of the source and partial outputs, with ``@partial_quality(NAME)``."""

    def register(function: PartialQuality) -> PartialQuality:
        FUNCTIONS[name] = function
        return function

    return register


@partial_quality("length_ratio")
def length_ratio(source: str, texts: Sequence[str]) -> list[float]:
    """0 up to the number of words of the source, and minus the log ratio of the numbers after it."""
    return [min(0.0, math.log((1 + len(source.split())) / (1 + len(text.split())))) for text in texts]


@dataclass
class QualityConfig(HeadConfig):
    """Configuration of the processor; its fields are the keys ``processor.quality.FIELD``."""

    weight: float = option(0.25, "factor of the log-probability that a token is good", minimum=0)


@register_logits_processor("quality", config=QualityConfig)
class QualityAware(HeadCritic):
    """Adds the log-probability that a candidate is good; the arguments are those of ``HeadCritic``."""

    can_merge = True

    @classmethod
    def build(cls, cfg: QualityConfig, resources: Resources) -> Self:
        """Read the head, and the model, unless it decodes already."""
        return cls(read_member(cfg.model, resources), read_head(cfg.head, "processor.quality.head"), cfg.k, cfg.weight)

    def values(self, context: StepContext, tokens: Tensor) -> Tensor:
        """See ``Critic.values``."""
        return nn.functional.logsigmoid(self.logits(context, tokens))


@dataclass
class QualityOfTextConfig:
    """Configuration of the processor; its fields are the keys ``processor.quality_of_text.FIELD``."""

    function: str = option("length_ratio", "name of the estimator: length_ratio, or your own")
    weight: float = option(0.25, "factor of what the function returns", minimum=0)
    k: int = option(20, "candidates of each beam; at least two for each beam", minimum=1)


@register_logits_processor("quality_of_text", config=QualityOfTextConfig)
class QualityOfText(Critic):
    """Adds what a function of the source and the partial output returns.

    Args:
        texts: the partial outputs.
        function: the estimator.
        weight: its factor.
        k: candidates of each beam.
    """

    can_merge = True

    def __init__(self, texts: PartialTexts, function: PartialQuality, weight: float = 0.25, k: int = 20):
        super().__init__([texts], k, weight)
        self.function = function

    @classmethod
    def build(cls, cfg: QualityOfTextConfig, resources: Resources) -> Self:
        """Find the function.

        Raises:
            ConfigError: no function is registered under this name.
        """
        if cfg.function not in FUNCTIONS:
            known, near = ", ".join(sorted(FUNCTIONS)), nearest(cfg.function, FUNCTIONS)
            raise ConfigError(f"there is no quality estimator {cfg.function!r}{near}; choose one of: {known}")
        return cls(PartialTexts.of(resources), FUNCTIONS[cfg.function], cfg.weight, cfg.k)

    def values(self, context: StepContext, tokens: Tensor) -> Tensor:
        """See ``Critic.values``."""
        if (sources := context.source_texts) is None:
            raise ConfigError("processor quality_of_text needs the text of the sources, which this decode lacks")
        texts, beams = self.parts[0].peek(context, tokens), context.rows_per_sentence
        found = [self.function(sources[row // beams], some) for row, some in enumerate(texts)]
        return torch.tensor(found, device=tokens.device)
