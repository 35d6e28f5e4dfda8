"""A logits processor without state: a reward for each word (He et al. 2016, "Improved NMT with SMT features").

``seqgen-generate common.user_dir=examples/extending/logits_processor.py path=runs/a input=test.en
generation.processors=[word_reward] processor.word_reward.reward=0.3``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from seqgen.config import option
from seqgen.generation.component import Resources
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.registry import register_logits_processor


@dataclass
class WordRewardConfig:
    """Configuration of the reward; its fields are the keys ``processor.word_reward.FIELD``."""

    reward: float = option(0.2, "what each token but end-of-sentence gains, in nats")


@register_logits_processor("word_reward", config=WordRewardConfig)
class WordReward(LogitsProcessor):
    """Adds a constant to every token but end-of-sentence.

    Args:
        eos: id of end-of-sentence.
        reward: the constant, in nats.
    """

    shift_invariant = True  # a constant added to a row before gives the same as one added after
    can_merge = True  # it reads neither tokens nor sources

    def __init__(self, eos: int, reward: float):
        self.eos, self.reward = eos, reward

    @classmethod
    def build(cls, cfg: WordRewardConfig, resources: Resources) -> Self:
        """Make the processor from its configuration and the target vocabulary."""
        return cls(resources.dictionary.eos(), cfg.reward)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """Change ``(rows, V)`` scores, in place or not."""
        ends = lprobs[:, self.eos].clone()
        lprobs = lprobs + self.reward
        lprobs[:, self.eos] = ends
        return lprobs
