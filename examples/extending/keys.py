"""A key of decoding, and a logits processor that reads it: a reward for each token except end-of-sentence.

``seqgen-generate common.user_dir=examples/extending/keys.py path=runs/a input=test.en generation.token_reward=0.3
generation.processors=[rewarded]``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from seqgen.extend import LogitsProcessor, Resources, StepContext, option, register_logits_processor, register_options


@register_options("generation")
@dataclass
class RewardOptions:
    """Keys that any component may read."""

    token_reward: float = option(0.0, "added to the score of each token except end-of-sentence, in nats")


@register_logits_processor("rewarded")
class Rewarded(LogitsProcessor):
    """Adds the reward.

    Args:
        eos: id of end-of-sentence.
        reward: the reward.
    """

    def __init__(self, eos: int, reward: float):
        self.eos, self.reward = eos, reward

    @classmethod
    def build(cls, cfg: Any, resources: Resources) -> Rewarded:
        """Read the key; see ``Component``."""
        settings: Any = resources.settings  # type checkers do not know the key
        return cls(resources.dictionary.eos(), settings.token_reward)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        rewards = lprobs.new_full((lprobs.size(1),), self.reward)
        rewards[self.eos] = 0
        return lprobs + rewards
