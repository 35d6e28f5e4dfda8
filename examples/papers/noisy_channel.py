"""Noisy-channel reranking (Yee, Dauphin and Auli 2019, "Simple and effective noisy channel modeling for NMT").

The hypotheses of a direct model are ranked by its own score, a channel model that translates them back into the source,
and a language model of the target language::

    1/t log p(y|x) + 1/s (channel_weight log p(x|y) + lm_weight log p(y))

with ``t`` tokens in the output ``y`` and ``s`` tokens in the source ``x``, end-of-sentence included. The channel model
is an ordinary model of the opposite direction, with a vocabulary of its own::

    seqgen-generate common.user_dir=examples/papers/noisy_channel.py path=runs/a input=test.en generation.beam=10
        generation.rerank=noisy_channel reranker.channel=runs/reverse reranker.lm=runs/target_lm
        reranker.channel_weight=0.3 reranker.lm_weight=0.1

Expect fewer outputs that leave source words out, since the channel model cannot generate these words. Weights are tuned
on validation data; a larger beam gives more to choose from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from seqgen import Translator
from seqgen.extend import ConfigError, DecodedLine, Reranker, Resources, option, register_reranker


@dataclass
class NoisyChannelConfig:
    """Configuration of the reranker; its fields are the keys ``reranker.FIELD``."""

    channel: str = option("", "run or checkpoint of a model from the target language to the source language")
    lm: str = option("", "run or checkpoint of a language model of the target language; empty for none")
    channel_weight: float = option(1.0, "weight of the channel model", minimum=0)
    lm_weight: float = option(0.3, "weight of the language model", minimum=0)


@register_reranker("noisy_channel", config=NoisyChannelConfig)
class NoisyChannel(Reranker):
    """Ranks by the direct model, the channel model and the language model.

    Args:
        channel: translates the target language into the source language.
        lm: a language model of the target language; ``None`` for none.
        channel_weight: weight of the channel model.
        lm_weight: weight of the language model.
    """

    def __init__(
        self, channel: Translator, lm: Translator | None = None, channel_weight: float = 1.0, lm_weight: float = 0.3
    ):
        self.channel, self.lm = channel, lm
        self.channel_weight, self.lm_weight = channel_weight, lm_weight

    @classmethod
    def build(cls, cfg: NoisyChannelConfig, resources: Resources) -> Self:
        """Load the models that the configuration names.

        Raises:
            ConfigError: no channel model is named.
        """
        if not cfg.channel:
            raise ConfigError("noisy_channel needs a model of the opposite direction; set reranker.channel=RUN")
        lm = Translator(cfg.lm, device=resources.device) if cfg.lm else None
        return cls(Translator(cfg.channel, device=resources.device), lm, cfg.channel_weight, cfg.lm_weight)

    def of_lines(self, lines: Sequence[DecodedLine]) -> list[Sequence[float]]:
        """Score the hypotheses of several lines.

        Args:
            lines: each line and its hypotheses.

        Returns:
            A score for each hypothesis, in nats for each token.
        """
        pairs = [(line, item) for line, hypotheses in lines for item in hypotheses]
        texts = [item.text.strip() for _, item in pairs]  # that of a prompt's continuation begins with a space
        channel = iter(log_probabilities(self.channel, texts, [line.member_sources[0] for line, _ in pairs]))
        lm = iter(log_probabilities(self.lm, [""] * len(texts), texts) if self.lm else [0.0] * len(texts))
        return [
            [
                float(item.positional_scores.mean())
                + (self.channel_weight * next(channel) + self.lm_weight * next(lm)) / len(line.source_tokens)
                for item in hypotheses
            ]
            for line, hypotheses in lines
        ]


def log_probabilities(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
    """The log-probability in nats that a model gives to each target, end-of-sentence included."""
    return [found.score for found in translator.score(sources, targets, normalize_scores=False)]
