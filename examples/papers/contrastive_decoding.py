"""Contrastive decoding (Li et al. 2023, "Contrastive decoding: open-ended text generation as optimization").

A large language model, the expert, is contrasted with a small one, the amateur, which makes the mistakes of the expert
more often: repetitions, generic words. Only tokens that the expert finds plausible are generated::

    V_head = {y : p_expert(y) >= alpha max p_expert}
    score  = log p_expert(y) - log softmax(z_amateur / temperature)(y)   if y in V_head, else -inf

Beam search maximizes the sum of the scores. Both models have one vocabulary, such as two sizes of SmolLM 2::

    seqgen-generate common.user_dir=examples/papers/contrastive_decoding.py path=[runs/llama-4,runs/llama-1]
        input=prompts.de generation.combination=contrastive_decoding generation.beam=5 generation.max_len=20
        generation.semantics=huggingface

Forced tokens, such as those of a prefix, are generated, plausible or not, except a forced end: under fairseq's rules an
output that is cut off ends with end-of-sentence, and is excluded if ``V_head`` lacks it, under Hugging Face's rules
not. With ``generation.member_sources=[input,empty]`` the amateur does not see the prompt; the paper gives it the last
token. Expect fewer repetitions and rarer words, also wrong ones if the expert is weak; with ``alpha=1`` the outputs are
those of the expert's greedy search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import Combination, ConfigError, StepContext, option, register_combination


@dataclass
class ContrastiveConfig:
    """Configuration of contrastive decoding; its fields are the keys ``combination.FIELD``."""

    alpha: float = option(
        0.1, "tokens below alpha times the expert's highest probability are excluded", minimum=0, maximum=1
    )
    temperature: float = option(0.5, "temperature of the amateur, 0.5 to 1.5 in the paper", minimum=1e-3)


@register_combination("contrastive_decoding", config=ContrastiveConfig)
class ContrastiveDecoding(Combination):
    """``log p_expert - log p_amateur`` of the tokens that the expert finds plausible.

    Args:
        alpha: tokens below ``alpha`` times the expert's highest probability are excluded, from 0 to 1.
        temperature: divisor of the amateur's logits, above 0.
    """

    can_merge = True  # it reads neither tokens nor source ids

    def __init__(self, alpha: float = 0.1, temperature: float = 0.5):
        self.alpha, self.temperature = alpha, temperature

    def attention_weights(self, members: int) -> list[float]:
        """The attention is that of the expert.

        Raises:
            ConfigError: there are not two members.
        """
        if members != 2:
            raise ConfigError(f"contrastive_decoding needs path=[EXPERT,AMATEUR], and there are {members} members")
        return [1.0, 0.0]

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """Combine the members' scores of the next token.

        Args:
            lprobs: ``(..., V)`` log-probabilities in nats of the expert and the amateur.
            context: says which tokens are forced.

        Returns:
            ``(..., V)`` scores in nats, not normalized.
        """
        expert, amateur = lprobs
        amateur = (amateur / self.temperature).log_softmax(-1)
        amateur = amateur.clamp(min=torch.finfo(amateur.dtype).min / 2)  # -(-inf) would be certain
        threshold = expert.amax(-1, keepdim=True) + (math.log(self.alpha) if self.alpha else -torch.inf)
        excluded = expert < threshold
        if context is not None and (forced := context.forced) is not None:
            begun = forced.masked_fill(forced == context.eos, -1)
            excluded &= torch.arange(expert.size(-1), device=expert.device) != begun.unsqueeze(1)
        return (expert - amateur).masked_fill(excluded, -torch.inf)
