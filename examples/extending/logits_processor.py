"""A logits processor without state: a reward for each word (He et al. 2016, "Improved NMT with SMT features").

``seqgen-generate common.user_dir=examples/extending/logits_processor.py path=runs/a input=test.en
generation.processors=[word_reward] processor.word_reward.reward=0.3``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from seqgen.extend import LogitsProcessor, Resources, StepContext, option, register_logits_processor


@dataclass
class WordRewardConfig:
    """Configuration of the reward; its fields are the keys ``processor.word_reward.FIELD``."""

    reward: float = option(0.2, "added to the score of each token except end-of-sentence, in nats")


@register_logits_processor("word_reward", config=WordRewardConfig)
class WordReward(LogitsProcessor):
    """Adds a constant to the score of every token except end-of-sentence, so that longer outputs rank higher.

    Args:
        eos: id of end-of-sentence.
        reward: the constant, in nats.
    """

    shift_invariant = True  # adding a constant to a row before this processor equals adding it afterwards
    can_merge = True  # it does not read tokens, source ids or context.step

    def __init__(self, eos: int, reward: float):
        self.eos, self.reward = eos, reward

    @classmethod
    def build(cls, cfg: WordRewardConfig, resources: Resources) -> Self:
        """Make the processor; it needs the id of end-of-sentence, so the default ``build`` is not enough."""
        return cls(resources.dictionary.eos(), cfg.reward)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """Change the scores of the next token.

        Args:
            lprobs: ``(rows, V)`` scores in nats; may be changed in place.
            context: the step.

        Returns:
            ``(rows, V)`` scores.
        """
        rewards = lprobs.new_full((lprobs.size(1),), self.reward)
        rewards[self.eos] = 0
        return lprobs + rewards
