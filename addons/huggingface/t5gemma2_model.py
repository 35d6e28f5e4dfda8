"""T5Gemma 2 (Zhang et al. 2025, "T5Gemma 2: Seeing, reading, and understanding longer"), without its vision tower.

It has the layers of Gemma 3. A decoder layer has one attention to source and target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from seqgen.addons.huggingface.t5gemma_model import (
    TINY,
    T5GemmaConfig,
    T5GemmaDecoder,
    T5GemmaDecoderLayer,
    T5GemmaModel,
)
from seqgen.config import option
from seqgen.extend import ConfigError, MergedAttention, Vocabularies, check_joined, register_model


@dataclass
class T5Gemma2Config(T5GemmaConfig):
    """Configuration of T5Gemma 2: that of T5Gemma, with other positions for the two types of layers."""

    encoder_rope_theta: float = option(1e6, "base of the rotary positions in full layers of the encoder", minimum=1e-6)
    encoder_rope_factor: float = option(1.0, "divisor of the positions in full layers of the encoder", minimum=1e-6)
    encoder_local_rope_theta: float = option(1e4, "the same base in sliding layers of the encoder", minimum=1e-6)
    encoder_sliding_window: int = option(4096, "positions to which a sliding encoder layer attends", minimum=1)
    decoder_rope_theta: float = option(1e6, "base of the rotary positions in full layers of the decoder", minimum=1e-6)
    decoder_rope_factor: float = option(1.0, "divisor of the positions in full layers of the decoder", minimum=1e-6)
    decoder_local_rope_theta: float = option(1e4, "the same base in sliding layers of the decoder", minimum=1e-6)
    attn_logit_softcapping: float = option(0.0, "soft cap of the attention scores; 0 for none", minimum=0)
    final_logit_softcapping: float = option(0.0, "soft cap of the logits; 0 for none", minimum=0)
    tie_word_embeddings: bool = option(True, "use one matrix as both embeddings and as the output projection")
    end_of_image_id: int = option(-1, "id of the token with a separate embedding; -1 for none", minimum=-1)

    period: ClassVar[int] = 6

    def of_side(self, side: str) -> Any:
        """See ``T5GemmaConfig.of_side``."""
        factor, local = (getattr(self, f"{side}_{key}") for key in ("rope_factor", "local_rope_theta"))
        return replace(super().of_side(side), qk_norm=True, rope_factor=factor, rope_local_base_freq=local)

    @property
    def encoder_window(self) -> tuple[int, int]:
        """See ``T5GemmaConfig.encoder_window``; of an even number of positions, one more is on the right."""
        return (self.encoder_sliding_window - 1) // 2, self.encoder_sliding_window // 2

    def check(self) -> None:
        """See ``T5GemmaConfig.check``."""
        super().check()
        if self.encoder_hidden_size != self.decoder_hidden_size:
            raise ConfigError(
                f"model.encoder_hidden_size={self.encoder_hidden_size} and model.decoder_hidden_size="
                f"{self.decoder_hidden_size} must be equal, as attention projects source and target alike"
            )


class T5Gemma2DecoderLayer(T5GemmaDecoderLayer):
    """Merged attention and a feed-forward network; see ``T5GemmaDecoderLayer``."""

    has_encoder_attn = False
    attention_class = MergedAttention

    def forward(self, x: Tensor, *arguments: Tensor | None, **options: Any) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        """Transform each new position; see ``AttentionLayer``. The weights are those of the source."""
        attended, weights = self.self_attn(self.self_attn_layer_norm(x), *arguments, **options)
        x = self._after("self_attn", x, attended)
        return self._after("final", x, self.feed_forward(self.final_layer_norm(x))), weights


class T5Gemma2Embedding(nn.Embedding):
    """An embedding in which one token, the end of an image, has a separate vector, which the output projection lacks.

    Args:
        end_of_image_id: id of the token.
        rows: number of ids.
        dim: dimension of the features.

    Attributes:
        end_of_image: its vector, by which features are not scaled.
    """

    def __init__(self, end_of_image_id: int, rows: int, dim: int):
        super().__init__(rows, dim)
        self.end_of_image_id = end_of_image_id
        self.end_of_image = nn.Parameter(torch.zeros(dim))

    def forward(self, input: Tensor) -> Tensor:
        """The embeddings of ids ``(...)``, before they are multiplied by the square root of their dimension."""
        vector = self.end_of_image / self.embedding_dim**0.5
        return torch.where(input.eq(self.end_of_image_id).unsqueeze(-1), vector, super().forward(input))


class T5Gemma2Decoder(T5GemmaDecoder):
    """T5Gemma 2 decoder; see ``T5GemmaDecoder``."""

    layer_class = T5Gemma2DecoderLayer


@register_model("t5gemma2", config=T5Gemma2Config, presets={"t5gemma2_tiny": T5Gemma2Config(**TINY)})
class T5Gemma2Model(T5GemmaModel):
    """T5Gemma 2; source and target have one vocabulary. See ``T5GemmaModel``."""

    decoder_class = T5Gemma2Decoder

    @staticmethod
    def embeddings(cfg: T5Gemma2Config, source_size: int, target_size: int) -> tuple[nn.Embedding, nn.Embedding]:
        """The embeddings of source and target: one, if it is also the output projection."""
        made: Any = nn.Embedding if cfg.end_of_image_id < 0 else partial(T5Gemma2Embedding, cfg.end_of_image_id)
        source = made(source_size, cfg.encoder_hidden_size)
        return source, source if cfg.tie_word_embeddings else made(target_size, cfg.decoder_hidden_size)

    @classmethod
    def build_model(cls, cfg: T5GemmaConfig, task: Vocabularies) -> Self:
        """Build the model; see ``T5GemmaModel.build_model``."""
        check_joined(task, "t5gemma2")
        return super().build_model(cfg, task)
