"""Proxy tuning (Liu et al. 2024, "Tuning language models by proxy").

A large language model decodes as if it had been fine-tuned: what fine-tuning has changed in a small model of the same
vocabulary is added to its logits. Three members::

    softmax(z_base + alpha (z_tuned - z_untuned))

The paper has ``alpha=1``. ``checkpoint.finetune_from`` trains the second model from the third::

    seqgen-generate common.user_dir=examples/papers/proxy_tuning.py path=[runs/llama-4,runs/tuned,runs/llama-1]
        input=prompts.de generation.max_len=20 generation.combination=proxy_tuning

Expect the style and the knowledge of the tuned model with the fluency of the base model. With ``alpha=0``, and with the
same model as the second and third member, outputs are those of the base model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import Combination, ConfigError, StepContext, option, register_combination


@dataclass
class ProxyTuningConfig:
    """Configuration of proxy tuning; its fields are the keys ``combination.FIELD``."""

    alpha: float = option(1.0, "weight of what tuning has changed in the small model; 0 for the base model", minimum=0)


@register_combination("proxy_tuning", config=ProxyTuningConfig)
class ProxyTuning(Combination):
    """``log softmax(log p_base + alpha (log p_tuned - log p_untuned))``, which equals the formula of logits.

    Args:
        alpha: weight of the difference of the small models.
    """

    can_merge = True  # it reads neither tokens nor source ids
    ignores_context = True

    def __init__(self, alpha: float = 1.0):
        self.alpha = alpha

    def attention_weights(self, members: int) -> list[float]:
        """The attention is that of the base model.

        Raises:
            ConfigError: there are not three members.
        """
        if members != 3:
            raise ConfigError(f"proxy_tuning needs path=[BASE,TUNED,UNTUNED], and there are {members} members")
        return [1.0, 0.0, 0.0]

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """Combine the members' scores of the next token.

        Args:
            lprobs: ``(..., V)`` log-probabilities in nats of the base model, the tuned one and the untuned one.
            context: not read, so that it can be ``None`` (``ignores_context``).

        Returns:
            ``(..., V)`` log-probabilities in nats.
        """
        base, tuned, untuned = lprobs
        untuned = untuned.clamp(min=torch.finfo(untuned.dtype).min / (2 + self.alpha))  # -(-inf) would be certain
        changed = base + self.alpha * (tuned - untuned) if self.alpha else base
        return changed.log_softmax(-1)
