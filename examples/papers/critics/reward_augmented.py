"""Reward-augmented decoding (Deng and Raffel 2023, "Reward-Augmented Decoding: Efficient Controlled Text Generation
With a Unidirectional Reward Model").

At each step, the k most probable tokens of each beam get beta r, where r, between 0 and 1, is the reward of the output
that ends with the token; all other tokens are forbidden. The reward is a linear head on the features of a model, which
reads all candidates against the keys and values of their beam, that are computed once.

``python examples/papers/critics/fit.py path=runs/a source=test.en target=test.de rewards=rewards
head=head.safetensors`` fits the head. ``seqgen-generate common.user_dir=examples/papers/critics path=runs/a
input=test.en generation.processors=[reward] processor.reward.head=head.safetensors processor.reward.beta=2``

In the paper, the reward model is trained as a whole; here its head is. The scores are not normalized again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from seqgen.extend import OwnMember, Resources, StepContext, option, register_logits_processor

from .head import HeadConfig, HeadCritic, read_head, read_member
from .text_member import TextMember


@dataclass
class RewardConfig(HeadConfig):
    """Configuration of the processor; its fields are the keys ``processor.reward.FIELD``."""

    beta: float = option(1.0, "factor of the rewards", minimum=0)


@register_logits_processor("reward", config=RewardConfig)
class RewardAugmented(HeadCritic):
    """Adds rewards to the scores of the best tokens.

    Args:
        member: the reward model.
        head: the head on its features.
        beta: factor of the rewards.
        k: candidates of each beam.
    """

    can_merge = True  # the values do not depend on when a line joined the batch

    def __init__(self, member: OwnMember | TextMember, head: nn.Linear, beta: float = 1.0, k: int = 20):
        super().__init__(member, head, k, beta)

    @classmethod
    def build(cls, cfg: RewardConfig, resources: Resources) -> Self:
        """Read the head, and the model, unless it decodes already."""
        return cls(read_member(cfg.model, resources), read_head(cfg.head, "processor.reward.head"), cfg.beta, cfg.k)

    def values(self, context: StepContext, tokens: Tensor) -> Tensor:
        """See ``Critic.values``."""
        return self.logits(context, tokens).sigmoid()
