"""Shallow fusion and density-ratio fusion of a translation model with language models.

Gulcehre et al. 2015, "On using monolingual corpora in neural machine translation" (shallow fusion), and McDermott, Sak
and Variani 2019, "A density ratio approach to language model fusion in end-to-end automatic speech recognition"::

    shallow fusion    log p(y|x) + w log p_target(y)
    density ratio     log p(y|x) - w_source log p_source(y) + w_target log p_target(y)

``p_source`` is a language model of the text that the translation model was trained on, and ``p_target`` one of the text
to be written: their ratio replaces the language model that the translation model has learned. All models have one
target vocabulary; a language model is trained with ``task=language_modeling`` and reads an empty source. Shallow fusion
is the built-in ``fusion``::

    seqgen-generate path=[runs/a,runs/target_lm] input=test.en generation.member_sources=[input,empty]
        generation.combination=fusion combination.weight=0.05
    seqgen-generate common.user_dir=examples/papers/shallow_fusion.py path=[runs/a,runs/source_lm,runs/target_lm]
        input=test.en generation.member_sources=[input,empty,empty] generation.combination=density_ratio

Expect more fluent and more frequent wording with a small weight, and generic outputs that leave source words out with a
large one. With the same language model twice and equal weights, outputs are those of the translation model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import Combination, ConfigError, StepContext, option, register_combination


@dataclass
class DensityRatioConfig:
    """Configuration of density-ratio fusion; its fields are the keys ``combination.FIELD``."""

    source_weight: float = option(0.1, "weight of the language model of the training text", minimum=0)
    target_weight: float = option(0.1, "weight of the language model of the text to be written", minimum=0)


@register_combination("density_ratio", config=DensityRatioConfig)
class DensityRatio(Combination):
    """``log p - source_weight log p_source + target_weight log p_target``, not renormalized.

    The members are the translation model, the source-domain and the target-domain language model, in this order.

    Args:
        source_weight: weight of the second member.
        target_weight: weight of the third member.
    """

    can_merge = True  # it reads neither tokens nor source ids
    ignores_context = True

    def __init__(self, source_weight: float = 0.1, target_weight: float = 0.1):
        self.source_weight, self.target_weight = source_weight, target_weight

    def attention_weights(self, members: int) -> list[float]:
        """The attention is that of the translation model.

        Raises:
            ConfigError: there are not three members.
        """
        if members != 3:
            raise ConfigError(
                f"density_ratio combines a translation model and two language models, and there are {members} members; "
                "set path=[MODEL,SOURCE_LM,TARGET_LM]"
            )
        return [1.0, 0.0, 0.0]

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """Combine the members' scores of the next token.

        Args:
            lprobs: from each member ``(..., V)`` log-probabilities in nats.
            context: not read, so that it can be ``None`` (``ignores_context``).

        Returns:
            ``(..., V)`` scores in nats.
        """
        translation, source, target = lprobs
        source = source.clamp(min=torch.finfo(source.dtype).min / (1 + self.source_weight))  # -(-inf) would be certain
        fused = translation - self.source_weight * source
        return fused + self.target_weight * target if self.target_weight else fused
