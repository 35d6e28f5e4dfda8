"""A logits processor with state: a penalty for each earlier occurrence of a token in the same hypothesis.

``seqgen-generate common.user_dir=examples/extending/stateful_processor.py path=runs/a input=test.en
generation.processors=[frequency_penalty] processor.frequency_penalty.penalty=0.5``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.candidates import Candidates
from seqgen.generation.component import BatchInfo, Resources
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.registry import register_logits_processor


@dataclass
class FrequencyPenaltyConfig:
    """Configuration of the penalty; its fields are the keys ``processor.frequency_penalty.FIELD``."""

    penalty: float = option(0.3, "what a token loses for each time that it has been generated, in nats", minimum=0)


@register_logits_processor("frequency_penalty", config=FrequencyPenaltyConfig)
class FrequencyPenalty(LogitsProcessor):
    """Keeps a count of each token for each beam, so that a step need not read the tokens generated so far.

    Args:
        size: how many tokens the vocabulary has.
        penalty: what a token loses for each earlier occurrence, in nats.
    """

    shift_invariant = True
    can_merge = True
    beam_state = ("counts",)  # reordered, dropped and joined with the beams of each sentence

    def __init__(self, size: int, penalty: float):
        self.size, self.penalty = size, penalty

    @classmethod
    def build(cls, cfg: FrequencyPenaltyConfig, resources: Resources) -> Self:
        """Make the processor from its configuration and the target vocabulary."""
        return cls(len(resources.dictionary), cfg.penalty)

    def begin(self, batch: BatchInfo) -> Self:
        """A copy for this batch, with counts of its own, ``(sentences, beam, V)``."""
        processor = super().begin(batch)
        processor.counts = torch.zeros(batch.num_sentences, batch.beam_size, self.size, device=batch.device)
        return processor

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """Change ``(rows, V)`` scores."""
        return lprobs - self.penalty * self.counts.flatten(0, 1)

    def advance(self, active: Candidates) -> None:
        """Follow the beams, then count the token that each of them has just got."""
        super().advance(active)
        self.counts.scatter_add_(2, active.tokens.unsqueeze(2), torch.ones_like(self.counts[..., :1]))
