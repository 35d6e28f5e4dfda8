"""A logits processor with state: a penalty for each earlier occurrence of a token in the same hypothesis.

``seqgen-generate common.user_dir=examples/extending/stateful_processor.py path=runs/a input=test.en
generation.processors=[frequency_penalty] processor.frequency_penalty.penalty=0.5``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.extend import (
    BatchInfo,
    Candidates,
    LogitsProcessor,
    Resources,
    StepContext,
    option,
    register_logits_processor,
)


@dataclass
class FrequencyPenaltyConfig:
    """Configuration of the penalty; its fields are the keys ``processor.frequency_penalty.FIELD``."""

    penalty: float = option(0.3, "subtracted from a token's score for each earlier occurrence, in nats", minimum=0)


@register_logits_processor("frequency_penalty", config=FrequencyPenaltyConfig)
class FrequencyPenalty(LogitsProcessor):
    """Counts the tokens of each beam as they are generated: ``lprobs - penalty * counts``.

    Args:
        size: size of the vocabulary.
        penalty: subtracted for each earlier occurrence, in nats.
    """

    shift_invariant = True  # adding a constant to a row before this processor equals adding it afterwards
    can_merge = True  # the counts of a sentence do not depend on when it joined the batch
    beam_state = ("counts",)  # the base class reorders, drops and merges this tensor with the beams
    counts: Tensor  # (sentences, beam, V)

    def __init__(self, size: int, penalty: float):
        self.size, self.penalty = size, penalty

    @classmethod
    def build(cls, cfg: FrequencyPenaltyConfig, resources: Resources) -> Self:
        """Make the processor; it needs the size of the vocabulary, so the default ``build`` is not enough."""
        return cls(len(resources.dictionary), cfg.penalty)

    def begin(self, batch: BatchInfo) -> Self:
        """Return a copy for this batch, whose counts ``(sentences, beam, V)`` are zero."""
        processor = super().begin(batch)
        processor.counts = torch.zeros(batch.num_sentences, batch.beam_size, self.size, device=batch.device)
        return processor

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """Penalize the ``(rows, V)`` scores of the next token; ``rows = sentences * beam``."""
        return lprobs - self.penalty * self.counts.flatten(0, 1)

    def advance(self, active: Candidates) -> None:
        """Reorder the counts with the beams, then count the newest token ``(sentences, beam)`` of each beam."""
        super().advance(active)
        self.counts.scatter_add_(2, active.tokens.unsqueeze(2), torch.ones_like(self.counts[..., :1]))
