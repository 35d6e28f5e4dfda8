"""Context-aware decoding (Shi et al. 2023, "Trusting your evidence: hallucinate less with context-aware decoding").

The model is a member twice: once it reads the context ``c`` and the source ``x``, once the source alone. Each token has
the log-probability::

    log softmax((1 + alpha) log p(y|c,x) - alpha log p(y|x))

Input lines have two fields, separated by a tab: the context followed by the source, and the source::

    seqgen-generate common.user_dir=examples/papers/context_aware.py path=[runs/a,runs/a] input=test.tsv
        generation.member_sources=[field1,field2] generation.combination=context_aware combination.alpha=0.5

``examples/documents.py`` makes such lines from the lines of documents, whose earlier lines are the context. With
``generation.member_sources=[input,empty]`` the whole line is the context: the output then depends more on its source.
Expect more words of the context in the output as ``alpha`` grows; ``alpha=0`` decodes with the context alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import Combination, ConfigError, StepContext, option, register_combination


@dataclass
class ContextAwareConfig:
    """Configuration of context-aware decoding; its fields are the keys ``combination.FIELD``."""

    alpha: float = option(0.5, "weight of the contrast; 0 for the member with the context alone", minimum=0)


@register_combination("context_aware", config=ContextAwareConfig)
class ContextAware(Combination):
    """``log softmax((1 + alpha) log p_1 - alpha log p_2)``.

    Args:
        alpha: weight of the contrast.
    """

    can_merge = True  # it reads neither tokens nor source ids
    ignores_context = True

    def __init__(self, alpha: float = 0.5):
        self.alpha = alpha

    def attention_weights(self, members: int) -> list[float]:
        """The attention is that of the member with the context.

        Raises:
            ConfigError: there are not two members.
        """
        if members != 2:
            raise ConfigError(
                f"context_aware contrasts two members, and there are {members}; set path=[MODEL,MODEL] and "
                "generation.member_sources=[field1,field2]"
            )
        return [1.0, 0.0]

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """Combine the members' scores of the next token.

        Args:
            lprobs: ``(..., V)`` log-probabilities in nats with the context, and without it.
            context: not read, so that it can be ``None`` (``ignores_context``).

        Returns:
            ``(..., V)`` log-probabilities in nats.
        """
        with_context, without = lprobs
        without = without.clamp(min=torch.finfo(without.dtype).min / (2 + self.alpha))  # -(-inf) would be certain
        return ((1 + self.alpha) * with_context - self.alpha * without).log_softmax(-1)
