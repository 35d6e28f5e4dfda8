"""Decoding interventions (Zhou et al. 2023, "Improving Seq2Seq Grammatical Error Correction via Decoding
Interventions"), with the critic that detects errors of the output.

At each step, the k most probable tokens y of each beam lose what a detector of errors finds, which reads the source and
the output that ends with y; all other tokens are forbidden::

    log p(y | y_<t, x) - alpha (1 + beta H(p)) / (1 + beta H(d)) d(error | y_<=t, x)

H is the entropy divided by its maximum: a detector that is certain counts more where the model is not. As in the
authors' code, a token that ends the output loses nothing. The detector is a linear head on the features of a model.

``python examples/papers/critics/fit.py path=runs/a source=DATA/train.en target=train.out.de references=DATA/train.de
head=errors.safetensors`` fits it, on outputs with errors.
``seqgen-generate common.user_dir=examples/papers/critics path=runs/a input=test.en
generation.processors=[interventions] processor.interventions.head=errors.safetensors
processor.interventions.alpha=0.8``

In the paper, the detector is trained as a whole, and it reads the best 24 candidates of all beams together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from seqgen.extend import OwnMember, Resources, StepContext, option, register_logits_processor

from .head import HeadConfig, HeadCritic, read_head, read_member
from .text_member import TextMember


@dataclass
class InterventionConfig(HeadConfig):
    """Configuration of the processor; its fields are the keys ``processor.interventions.FIELD``."""

    alpha: float = option(0.8, "factor of the probability of an error", minimum=0)
    beta: float = option(1.0, "how much the entropies count", minimum=0)


@register_logits_processor("interventions", config=InterventionConfig)
class Interventions(HeadCritic):
    """Lowers the scores of candidates that are errors.

    Args:
        member: the model that the detector reads.
        head: gives the probability that the newest token is right.
        alpha: factor of the probability of an error.
        beta: how much the entropies count.
        k: candidates of each beam.
    """

    can_merge = True  # the values do not depend on when a line joined the batch

    def __init__(
        self, member: OwnMember | TextMember, head: nn.Linear, alpha: float = 0.8, beta: float = 1.0, k: int = 20
    ):
        super().__init__(member, head, k, alpha)
        self.beta = beta

    @classmethod
    def build(cls, cfg: InterventionConfig, resources: Resources) -> Self:
        """Read the head, and the model, unless it decodes already."""
        head = read_head(cfg.head, "processor.interventions.head")
        return cls(read_member(cfg.model, resources), head, cfg.alpha, cfg.beta, cfg.k)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``Critic``."""
        self._entropy = entropy(lprobs.softmax(1)).unsqueeze(1)
        return super().__call__(lprobs, context)

    def values(self, context: StepContext, tokens: Tensor) -> Tensor:
        """See ``Critic.values``."""
        logits = self.logits(context, tokens)
        detected = torch.stack([logits.sigmoid(), (-logits).sigmoid()], dim=-1)
        factor = (1 + self.beta * self._entropy) / (1 + self.beta * entropy(detected))
        ends = torch.isin(tokens, tokens.new_tensor(context.sentences.end_tokens))
        return (-factor * detected[..., 1]).masked_fill(ends, 0)


def entropy(probabilities: Tensor) -> Tensor:
    """The entropy of distributions ``(..., V)`` divided by its maximum."""
    found: Tensor = torch.special.entr(probabilities).sum(-1)
    return found / math.log(max(2, probabilities.size(-1)))
