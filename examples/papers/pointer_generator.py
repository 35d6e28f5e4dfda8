"""The pointer-generator (See, Liu and Manning 2017, "Get To The Point: Summarization with Pointer-Generator Networks").

A transformer that generates a token from the vocabulary with probability ``p_gen``, and otherwise copies one of the
source: position ``i`` with the decoder's attention ``a_i``, averaged over heads. With the decoder's features ``s_t``,
the attended source ``h_t = sum_i a_i h_i`` and the embedding ``x_t`` of the decoder's input (equations 8 and 9)::

    p_gen = sigmoid(w_h h_t + w_s s_t + w_x x_t + b)
    p(y)  = p_gen softmax(V s_t)(y) + (1 - p_gen) sum over i with x_i = y of a_i

``seqgen-train common.user_dir=examples/papers/pointer_generator.py model=pointer_generator_tiny task=translation
task.source_lang=en task.target_lang=de task.train=DATA/train task.valid=DATA/val task.joined_dictionary=true
run_dir=runs/pointer``

Source and target have one vocabulary; with subwords, it has all words, so that the paper's extended vocabulary is not
needed. Expect names and rare words to be copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from seqgen.extend import (
    MODELS,
    ConfigError,
    Decoder,
    EncoderOut,
    StateDict,
    TransformerConfig,
    TransformerDecoder,
    TransformerEncoder,
    TransformerModel,
    Vocabularies,
    register_model,
)


@dataclass
class PointerGeneratorConfig(TransformerConfig):
    """The keys of the transformer."""


@dataclass(frozen=True)
class SourceEncoderOut(EncoderOut):
    """Features of the source, and its tokens ``(N, S)``."""

    tokens: Tensor = field(kw_only=True)


class SourceEncoder(TransformerEncoder):
    """Returns the tokens of the source, too."""

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> SourceEncoderOut:  # type: ignore[override]
        """Encode a batch."""
        out = super().forward(src_tokens, src_lengths)
        return SourceEncoderOut(out.encoder_out, out.encoder_padding_mask, tokens=src_tokens)


class PointerDecoder(TransformerDecoder):
    """Predicts tokens of the vocabulary and of the source."""

    reads_history, can_roll_back, can_merge = False, True, True
    early_exit = Decoder.early_exit  # a layer that is not the last one has no attention to copy by

    def __init__(self, cfg: TransformerConfig, embed_tokens: nn.Embedding, encoder_dim: int):
        super().__init__(cfg, embed_tokens, encoder_dim)
        self.gate = nn.Linear(encoder_dim + 2 * embed_tokens.embedding_dim, 1)

    def extract_features(self, prev_output_tokens: Tensor, encoder_out: Any,  # type: ignore[override]
                         incremental_state: StateDict | None = None, need_attention: bool = False,
                         ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The features ``(N, T, C)``, the logit of ``p_gen``, and the distribution of copies, ``(N, T, V)``."""
        inputs = self.embed_tokens(prev_output_tokens[:, self.positions_seen(incremental_state) :])
        features, attention = super().extract_features(prev_output_tokens, encoder_out, incremental_state, True)
        assert attention is not None
        gate = self.gate(torch.cat([attention @ encoder_out.encoder_out, features, inputs], -1))
        copies = attention.new_zeros(*attention.shape[:2], self.embed_tokens.num_embeddings)
        copies = copies.scatter_add(2, encoder_out.tokens.unsqueeze(1).expand_as(attention), attention)
        return torch.cat([features, gate, copies], -1), attention if need_attention else None

    def output_layer(self, features: Tensor) -> Tensor:
        """Log-probabilities ``(..., V)``, which are their own log-softmax."""
        sizes = [self.embed_tokens.embedding_dim, 1, self.embed_tokens.num_embeddings]
        features, gate, copies = features.split(sizes, -1)
        p_gen, generated = gate.sigmoid(), self.get_normalized_probs(super().output_layer(features), log_probs=False)
        return torch.clamp(p_gen * generated + (1 - p_gen) * copies, min=1e-30).log()


@register_model(
    "pointer_generator",
    config=PointerGeneratorConfig,
    presets={"pointer_generator_tiny": PointerGeneratorConfig(**vars(MODELS.config("transformer_tiny")))},
)
class PointerGenerator(TransformerModel):
    """A transformer that copies tokens of the source."""

    decoder_class = PointerDecoder

    @classmethod
    def build_model(cls, cfg: TransformerConfig, task: Vocabularies) -> Self:
        """Build the model; see ``TransformerModel.build_model``."""
        if task.source_dictionary != task.target_dictionary:
            raise ConfigError("model=pointer_generator copies tokens of the source; set task.joined_dictionary=true")
        plain = super().build_model(cfg, task)
        return cls(cfg, SourceEncoder(cfg, plain.encoder.embed_tokens), plain.decoder)
