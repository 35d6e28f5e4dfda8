"""Processors that scale or clean all scores of a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.registry import register_logits_processor


@dataclass
class TemperatureConfig:
    """Configuration of the logits processor temperature."""

    temperature: float = option(1.0, "scores are divided by this", minimum=1e-6)


@register_logits_processor("temperature", config=TemperatureConfig)
class Temperature(LogitsProcessor):
    """Divides the scores by the temperature.

    Args:
        temperature: values above 1 make the distribution flatter, values below 1 sharper.
    """

    def __init__(self, temperature: float):
        self.temperature = temperature

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return lprobs / self.temperature


@register_logits_processor("renormalize")
class Renormalize(LogitsProcessor):
    """Renormalizes the scores with a log-softmax. A row in which all tokens are forbidden stays ``-inf``."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        nothing = lprobs.amax(1, keepdim=True) == -torch.inf
        return lprobs.log_softmax(-1).masked_fill_(nothing, -torch.inf)


@register_logits_processor("remove_invalid")
class RemoveInvalid(LogitsProcessor):
    """Replaces NaN by 0 and ``inf`` by the largest finite value; ``-inf`` stays, since it marks forbidden tokens."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return lprobs.nan_to_num(nan=0.0, posinf=torch.finfo(lprobs.dtype).max, neginf=-torch.inf)
