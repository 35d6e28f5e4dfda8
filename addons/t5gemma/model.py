"""T5Gemma (Zhang et al. 2025, "Encoder-decoder Gemma"): the layers of Gemma 2 as an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from seqgen.config import option
from seqgen.extend import (
    ACTIVATIONS,
    AttentionLayer,
    ConfigError,
    Dropout,
    EncoderDecoderModel,
    GatedFeedForward,
    LayerDropList,
    LayeredDecoder,
    LayeredEncoder,
    LayerStack,
    Linear,
    MultiheadAttention,
    QueryPositions,
    RMSNorm,
    RotaryPositions,
    Vocabularies,
    embedding_sizes,
    register_model,
    soft_capped,
)

SLIDING, FULL = "sliding_attention", "full_attention"
"""The types of layers: self-attention to a window of positions, or to all."""

INIT_STD = 0.02
"""Standard deviation of the initial weights."""


@dataclass
class T5GemmaConfig:
    """Configuration of T5Gemma; names without their side are those of ``config.json``, the defaults those of 2B-2B."""

    vocab_size: int = option(0, "rows of each embedding; 0 for the size of the vocabulary", minimum=0)
    encoder_hidden_size: int = option(2304, "hidden size of the encoder", minimum=1)
    encoder_intermediate_size: int = option(9216, "hidden size of the encoder's feed-forward layers", minimum=1)
    encoder_layers: int = option(26, "number of encoder layers", minimum=1)
    encoder_attention_heads: int = option(8, "number of attention heads in the encoder", minimum=1)
    encoder_key_value_heads: int = option(4, "number of key/value heads in the encoder (grouped queries)", minimum=1)
    encoder_head_dim: int = option(256, "dimension of an attention head in the encoder; an even number", minimum=2)
    encoder_query_pre_attn_scalar: int = option(
        256, "scores of attention in the encoder are divided by the square root of this number", minimum=1
    )
    encoder_rope_theta: float = option(10000.0, "base of the rotary positions in the encoder", minimum=1e-6)
    encoder_sliding_window: int = option(
        4096, "largest distance to which a sliding layer of the encoder attends, in tokens", minimum=1
    )
    encoder_layer_types: list[str] = option(
        [], "sliding_attention or full_attention for each encoder layer; empty to alternate, sliding first"
    )
    decoder_hidden_size: int = option(2304, "hidden size of the decoder", minimum=1)
    decoder_intermediate_size: int = option(9216, "hidden size of the decoder's feed-forward layers", minimum=1)
    decoder_layers: int = option(26, "number of decoder layers", minimum=1)
    decoder_attention_heads: int = option(8, "number of attention heads in the decoder", minimum=1)
    decoder_key_value_heads: int = option(4, "number of key/value heads in the decoder (grouped queries)", minimum=1)
    decoder_head_dim: int = option(256, "dimension of an attention head in the decoder; an even number", minimum=2)
    decoder_query_pre_attn_scalar: int = option(
        256, "scores of attention in the decoder are divided by the square root of this number", minimum=1
    )
    decoder_rope_theta: float = option(10000.0, "base of the rotary positions in the decoder", minimum=1e-6)
    decoder_sliding_window: int = option(
        4096, "positions to which a sliding layer of the decoder attends, the current one included", minimum=1
    )
    decoder_layer_types: list[str] = option(
        [], "sliding_attention or full_attention for each decoder layer; empty to alternate, sliding first"
    )
    activation_fn: str = option(
        "gelu_accurate", "activation function of the gates in the feed-forward layers", choices=sorted(ACTIVATIONS)
    )
    attention_bias: bool = option(False, "add a bias to the projections of attention")
    attn_logit_softcapping: float = option(50.0, "soft cap of the attention scores; 0 for none", minimum=0)
    final_logit_softcapping: float = option(30.0, "soft cap of the logits; 0 for none", minimum=0)
    rms_norm_eps: float = option(1e-6, "constant added to the mean square in RMS normalization", minimum=0)
    dropout_rate: float = option(0.0, "dropout probability of features", minimum=0, maximum=0.99)
    attention_dropout: float = option(0.0, "dropout probability of attention weights", minimum=0, maximum=0.99)
    tie_word_embeddings: bool = option(True, "use the decoder's embedding as the output projection (tied weights)")
    decoder_start_token_id: int = option(-1, "id of the first decoder input; -1 for end-of-sentence", minimum=-1)
    max_source_positions: int = option(8192, "maximum source length, in tokens with end-of-sentence", minimum=1)
    max_target_positions: int = option(8192, "maximum target length, in tokens with end-of-sentence", minimum=1)

    def layer_types(self, side: str) -> list[str]:
        """The type of each layer, ``SLIDING`` or ``FULL``.

        Args:
            side: ``encoder`` or ``decoder``.
        """
        given: list[str] = getattr(self, f"{side}_layer_types")
        return given or [FULL if index % 2 else SLIDING for index in range(getattr(self, f"{side}_layers"))]

    def rotary_positions(self, side: str) -> list[RotaryPositions]:
        """The rotary positions of each layer.

        Args:
            side: ``encoder`` or ``decoder``.
        """
        shared = RotaryPositions(getattr(self, f"{side}_head_dim"), getattr(self, f"{side}_rope_theta"))
        return [shared] * getattr(self, f"{side}_layers")

    def attention_options(self) -> dict[str, Any]:
        """Further options of self-attention in all layers."""
        return {}

    @property
    def encoder_window(self) -> tuple[int, int]:
        """The largest distances to which a sliding layer of the encoder attends: to the left, and to the right."""
        return self.encoder_sliding_window, self.encoder_sliding_window

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is not one of its choices, or values exclude each other.
        """
        for side in ("encoder", "decoder"):
            layers, types = getattr(self, f"{side}_layers"), self.layer_types(side)
            if len(types) != layers or not {*types} <= {SLIDING, FULL}:
                raise ConfigError(f"model.{side}_layer_types must have {layers} entries, each {SLIDING} or {FULL}")


_TINY_SIDE = {
    **{"hidden_size": 128, "intermediate_size": 256, "layers": 4, "attention_heads": 4, "key_value_heads": 2},
    **{"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16},
}
TINY: dict[str, Any] = {f"{side}_{key}": size for side in ("encoder", "decoder") for key, size in _TINY_SIDE.items()}
TINY["dropout_rate"] = 0.1
"""Values of a small model for tests; the defaults are those of 2B-2B."""


class T5GemmaEncoderLayer(AttentionLayer):
    """Self-attention and the feed-forward network, each normalized before and after it, with a residual connection.

    Args:
        cfg: the configuration.
        side: ``"encoder"`` or ``"decoder"``.
    """

    attention_class: type[MultiheadAttention] = MultiheadAttention
    """The class of self-attention, for a subclass whose attention differs."""

    def __init__(self, cfg: T5GemmaConfig, side: str = "encoder"):
        super().__init__()
        self.self_attn = _attention(cfg, side, self.attention_class, **cfg.attention_options())
        self.self_attn_layer_norm = t5gemma_norm(cfg, side)
        self.self_attn_post_norm = t5gemma_norm(cfg, side)
        dim, hidden = getattr(cfg, f"{side}_hidden_size"), getattr(cfg, f"{side}_intermediate_size")
        self.feed_forward = GatedFeedForward(dim, hidden, cfg.activation_fn, cfg.dropout_rate, INIT_STD)
        self.final_layer_norm = t5gemma_norm(cfg, side)
        self.final_post_norm = t5gemma_norm(cfg, side)
        self.dropout = Dropout(cfg.dropout_rate)

    def _after(self, part: str, x: Tensor, update: Tensor) -> Tensor:
        return super()._after(part, x, getattr(self, f"{part}_post_norm")(update))


class T5GemmaDecoderLayer(T5GemmaEncoderLayer):
    """Causal self-attention, encoder-decoder attention and the feed-forward network, as in ``T5GemmaEncoderLayer``.

    Args:
        cfg: the configuration.
    """

    has_encoder_attn = True

    def __init__(self, cfg: T5GemmaConfig):
        super().__init__(cfg, "decoder")
        self.encoder_attn = _attention(cfg, "decoder", MultiheadAttention, encoder_dim=cfg.encoder_hidden_size)
        self.encoder_attn_layer_norm = t5gemma_norm(cfg, "decoder")
        self.encoder_attn_post_norm = t5gemma_norm(cfg, "decoder")


def _attention(cfg: T5GemmaConfig, side: str, kind: type[MultiheadAttention], **options: Any) -> MultiheadAttention:
    """The attention of one layer."""
    attention = kind(
        getattr(cfg, f"{side}_hidden_size"),
        getattr(cfg, f"{side}_attention_heads"),
        head_dim=getattr(cfg, f"{side}_head_dim"),
        dropout=cfg.attention_dropout,
        bias=cfg.attention_bias,
        scale=getattr(cfg, f"{side}_query_pre_attn_scalar") ** -0.5,
        kv_heads=getattr(cfg, f"{side}_key_value_heads"),
        soft_cap=cfg.attn_logit_softcapping or None,
        **options,
    )
    for parameter in attention.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=INIT_STD)
        else:
            nn.init.zeros_(parameter)
    return attention


def t5gemma_norm(cfg: T5GemmaConfig, side: str) -> RMSNorm:
    """The normalization of one side, ``encoder`` or ``decoder``."""
    return RMSNorm(getattr(cfg, f"{side}_hidden_size"), cfg.rms_norm_eps, zero_centered=True)


class T5GemmaStack(LayerStack):
    """Embeddings, rotary positions, layers and the last norm, which encoder and decoder share.

    Args:
        cfg: the configuration.
        side: ``"encoder"`` or ``"decoder"``.
        embed_tokens: the embedding.
        layer_class: the class of the layers.
    """

    def __init__(
        self, cfg: T5GemmaConfig, side: str, embed_tokens: nn.Embedding, layer_class: type[T5GemmaEncoderLayer]
    ):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = embed_tokens
        self.rotary = nn.ModuleList(cfg.rotary_positions(side))
        self.layer_types = cfg.layer_types(side)
        self.layers = LayerDropList(0.0, [layer_class(cfg) for _ in self.layer_types])
        self.layer_norm = t5gemma_norm(cfg, side)
        self.dropout = Dropout(cfg.dropout_rate)

    def embed(self, tokens: Tensor, queries: QueryPositions) -> Tensor:
        """Embeddings times the square root of their dimension, which is rounded to their dtype.

        They are float32 in a float16 model, because sums over many layers exceed the range of float16.
        """
        embedded = self.embed_tokens(tokens)
        scale = torch.full((), embedded.size(-1) ** 0.5, dtype=embedded.dtype, device=embedded.device)
        scaled = embedded * scale
        dropped: Tensor = self.dropout(scaled.float() if scaled.dtype == torch.float16 else scaled)
        return dropped

    def layer_options(self, queries: QueryPositions) -> list[dict[str, Any]]:
        """The rotation of each layer; layers with the same positions share it."""
        like = self.embed_tokens.weight
        made = {positions: positions(queries, like) for positions in dict.fromkeys(self.rotary)}
        return [{"rotation": made[positions]} for positions in self.rotary]


class T5GemmaEncoder(T5GemmaStack, LayeredEncoder):
    """T5Gemma encoder.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding of the source.
        padding_idx: id of padding in the source.
    """

    def __init__(self, cfg: T5GemmaConfig, embed_tokens: nn.Embedding, padding_idx: int):
        super().__init__(cfg, "encoder", embed_tokens, T5GemmaEncoderLayer)
        self.padding_idx = padding_idx

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor | None:
        """The mask of self-attention in one layer.

        Args:
            queries: the positions of the source.
            layer: index of the layer.

        Returns:
            Bool, true where attention is allowed, broadcastable to ``(N, H, S, S)``; ``None`` if everywhere.
        """
        left, right = self.cfg.encoder_window
        if self.layer_types[layer] == FULL or queries.new <= min(left, right) + 1:
            return queries.allowed
        distances = queries.distances
        return queries.once(self, lambda: queries.restrict((distances <= left) & (distances >= -right)))


class T5GemmaDecoder(T5GemmaStack, LayeredDecoder):
    """T5Gemma decoder.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding of the target.
    """

    layer_class: type[T5GemmaEncoderLayer] = T5GemmaDecoderLayer
    """The class of the layers, for a subclass whose layers differ."""

    def __init__(self, cfg: T5GemmaConfig, embed_tokens: nn.Embedding):
        super().__init__(cfg, "decoder", embed_tokens, self.layer_class)
        self.output_projection = Linear(cfg.decoder_hidden_size, embed_tokens.num_embeddings, bias=False)
        if cfg.tie_word_embeddings:
            self.output_projection.weight = embed_tokens.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=INIT_STD)

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor | None:
        """The mask of self-attention in one layer.

        Args:
            queries: the new positions.
            layer: index of the layer.

        Returns:
            Bool, true where attention is allowed, broadcastable to ``(N, H, new, K)``; ``None`` for a plain causal
            mask.
        """
        window = self.cfg.decoder_sliding_window
        if self.layer_types[layer] == SLIDING and queries.seen + queries.new > window:
            return queries.once(self, lambda: queries.restrict(queries.distances < window))
        return super().self_attention_mask(queries, layer)

    def output_layer(self, features: Tensor) -> Tensor:
        """Project features ``(..., C)`` to soft-capped logits ``(..., V)``."""
        return self._capped(super().output_layer(features))

    def output_columns(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Prepare the output layer for the tokens ``ids``; see ``Decoder.output_columns``."""
        columns = super().output_columns(ids)
        return lambda features: self._capped(columns(features))

    def output_product(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """``None`` if logits are soft-capped, as they are then not a product; see ``Decoder.output_product``."""
        return None if self.cfg.final_logit_softcapping else super().output_product(features)

    def _capped(self, logits: Tensor) -> Tensor:
        bound = self.cfg.final_logit_softcapping
        return soft_capped(logits, bound) if bound else logits


@register_model("t5gemma", config=T5GemmaConfig, presets={"t5gemma_tiny": T5GemmaConfig(**TINY)})
class T5GemmaModel(EncoderDecoderModel):
    """T5Gemma.

    Args:
        cfg: the configuration.
        source_size: number of source ids.
        target_size: number of target ids.
        padding_idx: id of padding in the source.
    """

    supports_packing = True
    decoder_class: type[T5GemmaDecoder] = T5GemmaDecoder
    """The class of the decoder, for a subclass whose decoder differs."""

    encoder: T5GemmaEncoder
    decoder: T5GemmaDecoder

    def __init__(self, cfg: T5GemmaConfig, source_size: int, target_size: int, padding_idx: int):
        source, target = self.embeddings(cfg, source_size, target_size)
        super().__init__(T5GemmaEncoder(cfg, source, padding_idx), self.decoder_class(cfg, target))
        self.cfg = cfg
        for embedding in (source, target):
            nn.init.normal_(embedding.weight, std=INIT_STD)

    @staticmethod
    def embeddings(cfg: Any, source_size: int, target_size: int) -> tuple[nn.Embedding, nn.Embedding]:
        """The embeddings of source and target; see ``T5GemmaModel``."""
        return nn.Embedding(source_size, cfg.encoder_hidden_size), nn.Embedding(target_size, cfg.decoder_hidden_size)

    @classmethod
    def build_model(cls, cfg: T5GemmaConfig, task: Vocabularies) -> Self:
        """Build the model.

        Args:
            cfg: the configuration.
            task: gives the dictionaries.

        Raises:
            ConfigError: values of the configuration exclude each other, or do not fit the dictionaries.
        """
        cfg.check()
        sizes = embedding_sizes(task, cfg.vocab_size, cfg.decoder_start_token_id)
        try:
            return cls(replace(cfg), *sizes, task.source_dictionary.pad())
        except ValueError as error:
            raise ConfigError(f"the configuration of this model cannot be used: {error}") from None

    def start_token(self, task_eos: int) -> int:
        """The id that ``prev_output_tokens`` begins with: ``decoder_start_token_id``, or else end-of-sentence."""
        return task_eos if self.cfg.decoder_start_token_id < 0 else self.cfg.decoder_start_token_id
