"""DoLa: decoding by contrasting layers (Chuang et al. 2023).

"DoLa: decoding by contrasting layers improves factuality in large language models": the last layer ``N`` is contrasted
with an earlier one ``M``, which is selected at each step and for each beam. ``q_j`` is the distribution that the output
layer gives to the output of layer ``j``, and JSD the Jensen-Shannon divergence::

    M     = argmax_j JSD(q_N, q_j)
    F(y)  = log q_N(y) - log q_M(y)   if q_N(y) >= alpha max q_N, else -inf
    score = log softmax(F(y))

The decoder needs ``early_exit``: transformer, T5, transformer_lm and llama have it::

    seqgen-generate common.user_dir=examples/papers/dola.py path=runs/transformer input=test.en generation.beam=1
        generation.processors=[dola] processor.dola.layers=[1,2]

The paper is about large language models with many layers. Expect worse translations from models with few layers: their
early layers were not trained to predict, so that the contrast mostly flattens the distribution among plausible tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqgen.extend import LAYER_LOGITS, ConfigError, LogitsProcessor, StepContext, option, register_logits_processor


@dataclass
class DolaConfig:
    """Configuration of DoLa; its fields are the keys ``processor.dola.FIELD``."""

    layers: list[int] = option([], "layers to choose from, from 1; empty for all even ones but the last", minimum=1)
    alpha: float = option(0.1, "tokens below alpha times the highest probability are excluded", minimum=0, maximum=1)


@register_logits_processor("dola", config=DolaConfig)
class Dola(LogitsProcessor):
    """Contrasts the last layer with the earlier layer whose distribution differs most from it.

    Args:
        layers: the earlier layers to choose from, counted from 1; empty for all even ones but the last.
        alpha: tokens below ``alpha`` times the highest probability are excluded.
    """

    needs = frozenset({LAYER_LOGITS})
    can_merge = True  # it reads neither tokens nor source ids

    def __init__(self, layers: Sequence[int] = (), alpha: float = 0.1):
        self.layers, self.alpha = list(layers), alpha

    def candidates(self, count: int) -> list[int]:
        """The layers to choose from, counted from 1.

        Args:
            count: layers of the decoder.

        Raises:
            ConfigError: there is none, or one is not an earlier layer.
        """
        layers = self.layers or list(range(2, count, 2))
        if not layers or max(layers) >= count:
            raise ConfigError(
                f"processor.dola.layers={layers}: the decoder has {count} layers, and each must be between 1 and "
                f"{count - 1}"
            )
        return layers

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """Change the scores of the next token.

        Args:
            lprobs: ``(rows, V)`` scores in nats, of the last layer.
            context: the step.

        Returns:
            ``(rows, V)`` log-probabilities.
        """
        exits = context.outputs.layer_logits
        assert exits is not None
        last = lprobs.log_softmax(-1)
        early = torch.stack([exits[layer - 1].log_softmax(-1) for layer in self.candidates(len(exits))])
        chosen = jensen_shannon(last, early).argmax(0)  # (rows,)
        premature = early[chosen, torch.arange(last.size(0), device=last.device)]
        threshold = last.amax(-1, keepdim=True) + (math.log(self.alpha) if self.alpha else -torch.inf)
        contrast = (last - premature).masked_fill(last < threshold, -torch.inf)
        return contrast.log_softmax(-1).nan_to_num(nan=-torch.inf)  # NaN: all tokens were forbidden


def jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """The Jensen-Shannon divergence of distributions: ``H(m) - (H(p) + H(q)) / 2`` with ``m = (p + q) / 2``.

    Args:
        one: ``(..., V)`` log-probabilities in nats.
        other: ``(..., V)``, broadcast against ``one``.

    Returns:
        ``(...)`` in nats.
    """
    p, q = one.exp(), other.exp()

    def entropy(probabilities: Tensor) -> Any:
        return torch.special.entr(probabilities).sum(-1)

    divergence: Tensor = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return divergence
