"""T5 (Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text transformer").

One class implements all variants: T5 1.0 and 1.1, Flan-T5, mT5, ByT5 and umT5 differ only in their configurations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqgen.config import option
from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.data.dictionary import Vocabularies, check_joined, embedding_sizes
from seqgen.modules.dropout import Dropout, LayerDropList
from seqgen.modules.layered import LayeredDecoder, LayeredEncoder, LayerStack
from seqgen.modules.linear import Linear
from seqgen.modules.masks import QueryPositions
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.modules.positions import RelativePositionBias
from seqgen.modules.projected_output import make_output_projection
from seqgen.modules.rms_norm import RMSNorm
from seqgen.modules.transformer_layer import AttentionLayer
from seqgen.registry import register_model

_GELU_TANH = partial(F.gelu, approximate="tanh")

FEED_FORWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    **{"relu": F.relu, "gelu": F.gelu, "gelu_new": _GELU_TANH, "silu": F.silu},
    # under the name gated-gelu, T5 1.1 uses the tanh approximation
    **{"gated-relu": F.relu, "gated-gelu": _GELU_TANH, "gated-silu": F.silu},
}
"""Activations of the feed-forward network; with ``gated-``, the activated projection is multiplied by a second one."""


@dataclass
class T5Config:
    """Configuration of T5, with the names of Hugging Face's ``config.json``; the defaults are those of t5-small."""

    vocab_size: int = option(0, "rows of the embedding; 0 for the size of the vocabulary", minimum=0)
    d_model: int = option(512, "hidden size", minimum=1)
    d_kv: int = option(64, "dimension of an attention head", minimum=1)
    d_ff: int = option(2048, "hidden size of the feed-forward layers", minimum=1)
    num_layers: int = option(6, "number of encoder layers", minimum=1)
    num_decoder_layers: int = option(0, "number of decoder layers; 0 for as many as the encoder has", minimum=0)
    num_heads: int = option(8, "attention heads", minimum=1)
    relative_attention_num_buckets: int = option(32, "number of buckets of relative positions", minimum=4)
    relative_attention_max_distance: int = option(
        128, "distance from which all relative positions share one bucket", minimum=3, maximum=1 << 20
    )
    per_layer_bias: bool = option(
        False, "every layer has its own relative position bias (umT5); if false, all share that of the first layer"
    )
    feed_forward_proj: str = option(
        "relu", "activation function of the feed-forward layers", choices=tuple(FEED_FORWARDS)
    )
    tie_word_embeddings: bool = option(True, "use the embedding as the output projection (tied weights)")
    scale_decoder_outputs: bool | None = option(
        None, "multiply features by d_model ** -0.5 before the output projection; null to do so if the weights are tied"
    )
    dropout_rate: float = option(0.1, "dropout probability of features and attention weights", minimum=0, maximum=0.99)
    layer_norm_epsilon: float = option(1e-6, "constant added to the mean square in RMS normalization", minimum=0)
    decoder_start_token_id: int = option(-1, "id of the first decoder input; -1 for padding", minimum=-1)
    max_source_positions: int = option(4096, "maximum source length, in tokens with end-of-sentence", minimum=1)
    max_target_positions: int = option(4096, "maximum target length, in tokens with end-of-sentence", minimum=1)

    @property
    def decoder_layers(self) -> int:
        """The number of decoder layers."""
        return self.num_decoder_layers or self.num_layers

    @property
    def inner_dim(self) -> int:
        """The dimension of all attention heads together."""
        return self.num_heads * self.d_kv

    @property
    def is_gated(self) -> bool:
        """True if the feed-forward network has a gate."""
        return self.feed_forward_proj.startswith("gated-")

    @property
    def scales_outputs(self) -> bool:
        """True if features are multiplied by ``d_model ** -0.5`` before the output projection."""
        return self.tie_word_embeddings if self.scale_decoder_outputs is None else self.scale_decoder_outputs


def _shape(d_model: int, d_ff: int, layers: int, heads: int, **further: Any) -> T5Config:
    return T5Config(d_model=d_model, d_ff=d_ff, num_layers=layers, num_heads=heads, **further)


_V1_1: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
"""T5 1.1 is gated, with an untied output projection."""

PRESETS: dict[str, T5Config] = {
    "t5_tiny": _shape(128, 256, 4, 4, d_kv=32),
    "t5_small": _shape(512, 2048, 6, 8),
    "t5_base": _shape(768, 3072, 12, 12),
    "t5_large": _shape(1024, 4096, 24, 16),
    "t5_v1_1_small": _shape(512, 1024, 8, 6, **_V1_1),
    "t5_v1_1_base": _shape(768, 2048, 12, 12, **_V1_1),
    "t5_v1_1_large": _shape(1024, 2816, 24, 16, **_V1_1),
}
"""Published models by name; Flan-T5 and mT5 have the shapes of T5 1.1."""


def t5_attention(cfg: T5Config, encoder_decoder: bool = False) -> MultiheadAttention:
    """T5's attention: scores are not scaled; the query projection has smaller initial weights instead.

    Args:
        cfg: the configuration.
        encoder_decoder: whether it attends to the encoder's output.

    Returns:
        The attention module.
    """
    attention = MultiheadAttention(
        cfg.d_model,
        cfg.num_heads,
        encoder_dim=cfg.d_model if encoder_decoder else None,
        head_dim=cfg.d_kv,
        dropout=cfg.dropout_rate,
        bias=False,
        scale=1.0,
    )
    with torch.no_grad():
        inner = cfg.inner_dim
        fused = None if encoder_decoder else attention.in_proj.weight.split([inner, 2 * inner])
        query, others = fused or (attention.q_proj.weight, attention.kv_proj.weight)
        nn.init.normal_(query, std=(cfg.d_model * cfg.d_kv) ** -0.5)
        nn.init.normal_(others, std=cfg.d_model**-0.5)
        nn.init.normal_(attention.out_proj.weight, std=inner**-0.5)
    return attention


class WideLinear(Linear):
    """A linear layer that stays in float32 when the model is converted to float16.

    In the published models, the output of the last feed-forward projection exceeds the largest float16, 65,504.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map ``(..., in_features)`` to ``(..., out_features)``, in the dtype of the weight."""
        device = input.device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16:
            with torch.autocast(device, enabled=False):
                return super().forward(input.to(self.weight.dtype))
        return super().forward(input if input.dtype == self.weight.dtype else input.to(self.weight.dtype))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def in_float32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device, torch.float32) if moved.dtype == torch.float16 else moved

        return super()._apply(in_float32, recurse)


class T5FeedForward(nn.Module):
    """Feed-forward network with two projections and, in later versions, a gate (Shazeer 2020, "GLU variants").

    One matrix projects to the gate and to the gated values; its first rows are those of the gate.

    Args:
        cfg: the configuration.
    """

    def __init__(self, cfg: T5Config):
        super().__init__()
        self.is_gated = cfg.is_gated
        self.activation = FEED_FORWARDS[cfg.feed_forward_proj]
        self.wi = Linear(cfg.d_model, cfg.d_ff * (2 if cfg.is_gated else 1), bias=False)
        self.wo = WideLinear(cfg.d_ff, cfg.d_model, bias=False)
        self.dropout = Dropout(cfg.dropout_rate)
        nn.init.normal_(self.wi.weight, std=cfg.d_model**-0.5)
        nn.init.normal_(self.wo.weight, std=cfg.d_ff**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position of ``(..., C)``."""
        hidden = self.wi(x)
        if hidden.dtype == torch.float16:  # the product of gate and values may also exceed the range of float16
            hidden = hidden.float()
        if self.is_gated:
            gate, linear = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * linear
        else:
            hidden = self.activation(hidden)
        projected: Tensor = self.wo(self.dropout(hidden) if self.training else hidden)
        return projected


class T5Layer(AttentionLayer):
    """One layer; normalization is applied before each sublayer.

    Args:
        cfg: the configuration.
        is_decoder: whether it also attends to the source.
    """

    def __init__(self, cfg: T5Config, is_decoder: bool):
        super().__init__()
        self.has_encoder_attn = is_decoder
        self.self_attn = t5_attention(cfg)
        self.self_attn_layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        if is_decoder:
            self.encoder_attn = t5_attention(cfg, encoder_decoder=True)
            self.encoder_attn_layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        self.feed_forward = T5FeedForward(cfg)
        self.final_layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        self.dropout = Dropout(cfg.dropout_rate)


class T5Stack(LayerStack):
    """Relative position biases, layers and the last norm, which encoder and decoder share.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding, which both share.
        layers: number of layers.
        is_decoder: whether positions attend only to those up to themselves, and to the source.
    """

    def __init__(self, cfg: T5Config, embed_tokens: nn.Embedding, layers: int, is_decoder: bool):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = embed_tokens
        buckets, distance = cfg.relative_attention_num_buckets, cfg.relative_attention_max_distance
        biases = [
            RelativePositionBias(cfg.num_heads, buckets, distance, bidirectional=not is_decoder)
            for _ in range(layers if cfg.per_layer_bias else 1)
        ]
        for bias in biases:
            nn.init.normal_(bias.weight, std=cfg.d_model**-0.5)
        self.position_biases = nn.ModuleList(biases)
        self.layers = LayerDropList(0.0, [T5Layer(cfg, is_decoder) for _ in range(layers)])
        self.layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        self.dropout = Dropout(cfg.dropout_rate)

    def embed(self, tokens: Tensor, queries: QueryPositions) -> Tensor:
        """The embeddings: in float32 in a float16 model, because sums over many layers exceed the range of float16."""
        embedded = self.embed_tokens(tokens)
        dropped: Tensor = self.dropout(embedded.float() if embedded.dtype == torch.float16 else embedded)
        return dropped

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor:
        """The relative position bias of a layer, with a large negative number where attention is not allowed.

        Distances do not depend on the start offset of a row or on the place of an example in its row.

        Args:
            queries: the positions that are computed.
            layer: index of the layer.

        Returns:
            Added to the scores, broadcastable to ``(N, H, T, K)``.
        """
        biases = self.position_biases
        bias = biases[min(layer, len(biases) - 1)]
        return queries.once(bias, lambda: queries.restrict(bias(queries.seen, queries.new, queries.seen + queries.new)))


class T5Encoder(T5Stack, LayeredEncoder):
    """T5 encoder: layers of self-attention with relative position biases.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding, shared with the decoder.
        padding_idx: id of padding.
    """

    def __init__(self, cfg: T5Config, embed_tokens: nn.Embedding, padding_idx: int):
        super().__init__(cfg, embed_tokens, cfg.num_layers, is_decoder=False)
        self.padding_idx = padding_idx


class T5Decoder(T5Stack, LayeredDecoder):
    """T5 decoder: layers of causal self-attention and encoder-decoder attention.

    Padding among the target tokens is not masked, since padding is the start token.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding, shared with the encoder.
    """

    def __init__(self, cfg: T5Config, embed_tokens: nn.Embedding):
        super().__init__(cfg, embed_tokens, cfg.decoder_layers, is_decoder=True)
        self.output_projection = make_output_projection(embed_tokens, cfg.tie_word_embeddings, 1.0)

    def projected_features(self, features: Tensor) -> Tensor:
        """Scale the features: a tied embedding has values of variance 1, so logits would have variance d_model."""
        return features * self.cfg.d_model**-0.5 if self.cfg.scales_outputs else features


@register_model("t5", config=T5Config, presets=PRESETS)
class T5Model(EncoderDecoderModel):
    """T5.

    Args:
        cfg: the configuration, with ``vocab_size`` set.
        padding_idx: id of padding, which is the start token unless ``decoder_start_token_id`` is set.
    """

    supports_packing = True

    encoder: T5Encoder
    decoder: T5Decoder

    def __init__(self, cfg: T5Config, padding_idx: int):
        embed_tokens = nn.Embedding(cfg.vocab_size, cfg.d_model)
        super().__init__(T5Encoder(cfg, embed_tokens, padding_idx), T5Decoder(cfg, embed_tokens))
        self.cfg = cfg
        self.padding_idx = padding_idx

    @classmethod
    def build_model(cls, cfg: T5Config, task: Vocabularies) -> Self:
        """Build the model.

        Args:
            cfg: the configuration.
            task: gives the dictionary, the same one for source and target.

        Raises:
            ConfigError: values of the configuration exclude each other, or do not fit the dictionary.
        """
        buckets, distance = cfg.relative_attention_num_buckets, cfg.relative_attention_max_distance
        if buckets % 2 or distance <= buckets // 2:
            raise ConfigError(
                f"model.relative_attention_num_buckets={buckets} must be even and less than twice "
                f"model.relative_attention_max_distance={distance}"
            )
        check_joined(task, "t5")
        _, rows = embedding_sizes(task, cfg.vocab_size, cfg.decoder_start_token_id)
        return cls(replace(cfg, vocab_size=rows), task.target_dictionary.pad())

    def start_token(self, task_eos: int) -> int:
        """The id that ``prev_output_tokens`` begins with: ``decoder_start_token_id``, or padding if that is not set."""
        return self.padding_idx if self.cfg.decoder_start_token_id < 0 else self.cfg.decoder_start_token_id
