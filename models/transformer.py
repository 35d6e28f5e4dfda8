"""The transformer (Vaswani et al. 2017, "Attention is all you need")."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from seqgen.config import option
from seqgen.core.encoder import Encoder
from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import EncoderOut, Segments
from seqgen.data.vocabularies import Vocabularies, embedding_sizes
from seqgen.modules.dropout import Dropout, LayerDropList
from seqgen.modules.layered import LayeredDecoder, LayerStack
from seqgen.modules.linear import Linear
from seqgen.modules.masks import QueryPositions, padding_mask_of
from seqgen.modules.positions import SINUSOIDS, LearnedPositions, Positions, SinusoidalPositions, token_embedding
from seqgen.modules.transformer_layer import ACTIVATIONS, TransformerDecoderLayer, TransformerEncoderLayer
from seqgen.registry import register_model


@dataclass
class TransformerConfig:
    """Configuration of the transformer, with fairseq's names; the defaults are the base model of the paper."""

    dropout: float = option(0.1, "dropout probability of features", minimum=0, maximum=0.99)
    attention_dropout: float = option(0.0, "dropout probability of attention weights", minimum=0, maximum=0.99)
    activation_dropout: float = option(
        0.0, "dropout probability between the two feed-forward layers", minimum=0, maximum=0.99
    )
    activation_fn: str = option("relu", "activation function of the feed-forward layers", choices=sorted(ACTIVATIONS))
    encoder_embed_dim: int = option(512, "hidden size of the encoder", minimum=1)
    encoder_ffn_embed_dim: int = option(2048, "hidden size of the encoder's feed-forward layers", minimum=1)
    encoder_layers: int = option(6, "number of encoder layers", minimum=1)
    encoder_attention_heads: int = option(8, "number of attention heads in the encoder", minimum=1)
    encoder_normalize_before: bool = option(
        False, "apply layer normalization before each sublayer of the encoder (pre-norm); if false, after it"
    )
    encoder_learned_pos: bool = option(False, "learned position embeddings in the encoder instead of sinusoidal ones")
    encoder_layerdrop: float = option(
        0.0, "LayerDrop: probability of skipping an encoder layer in training", minimum=0, maximum=0.99
    )
    decoder_embed_dim: int = option(512, "hidden size of the decoder", minimum=1)
    decoder_ffn_embed_dim: int = option(2048, "hidden size of the decoder's feed-forward layers", minimum=1)
    decoder_layers: int = option(6, "number of decoder layers", minimum=1)
    decoder_attention_heads: int = option(8, "number of attention heads in the decoder", minimum=1)
    decoder_normalize_before: bool = option(
        False, "apply layer normalization before each sublayer of the decoder (pre-norm); if false, after it"
    )
    decoder_learned_pos: bool = option(False, "learned position embeddings in the decoder instead of sinusoidal ones")
    decoder_layerdrop: float = option(
        0.0, "LayerDrop: probability of skipping a decoder layer in training", minimum=0, maximum=0.99
    )
    share_decoder_input_output_embed: bool = option(
        False, "use the decoder's input embedding as its output projection (tied weights)"
    )
    share_all_embeddings: bool = option(
        False, "share one matrix for source, target and output embeddings (needs a joint vocabulary)"
    )
    share_encoder_decoder_embed: bool = option(
        False, "share one matrix for source and target embeddings (needs a joint vocabulary)"
    )
    output_bias: bool = option(False, "add a bias to the output projection")
    no_scale_embedding: bool = option(False, "do not multiply embeddings by the square root of their dimension")
    layernorm_embedding: bool = option(False, "apply layer normalization to embeddings")
    layer_norm_epsilon: float = option(1e-5, "constant added to the variance in layer normalization", minimum=0)
    max_source_positions: int = option(1024, "maximum source length, in tokens with end-of-sentence", minimum=1)
    max_target_positions: int = option(1024, "maximum target length, in tokens with end-of-sentence", minimum=1)
    position_offset: int | None = option(
        None, "number of the first position; null for padding_idx + 1, as in fairseq", minimum=0
    )
    sinusoids: str = option(
        "fairseq", "frequencies of sinusoidal positions: fairseq's, or those of the paper", choices=SINUSOIDS
    )
    decoder_start_token_id: int = option(-1, "id of the first decoder input; -1 for end-of-sentence", minimum=-1)


class TransformerStack(LayerStack):
    """Embeddings, layers and the last norm, which encoders and decoders share.

    Args:
        cfg: the configuration.
        side: ``"encoder"`` or ``"decoder"``, with which the names of its options begin.
        embed_tokens: embedding of the vocabulary.
        padding_idx: id of padding, from which positions are counted.
        make_layer: makes the layer with an index.
    """

    def __init__(
        self,
        cfg: Any,
        side: str,
        embed_tokens: nn.Embedding,
        padding_idx: int | None,
        make_layer: Callable[[int], nn.Module],
    ):
        super().__init__()
        dim = embed_tokens.embedding_dim
        norm = partial(nn.LayerNorm, dim, cfg.layer_norm_epsilon)
        self.embed_tokens = embed_tokens
        self.embed_positions = _positions(cfg, side, dim, padding_idx)
        self.embed_scale = 1.0 if cfg.no_scale_embedding else math.sqrt(dim)
        self.layernorm_embedding = norm() if cfg.layernorm_embedding else nn.Identity()
        self.dropout = Dropout(cfg.dropout)
        layers = [make_layer(index) for index in range(getattr(cfg, f"{side}_layers"))]
        self.layers = LayerDropList(getattr(cfg, f"{side}_layerdrop"), layers)
        pre_norm = getattr(cfg, f"{side}_normalize_before") and not getattr(cfg, "no_decoder_final_norm", False)
        self.layer_norm = norm() if pre_norm else nn.Identity()

    def embed(self, tokens: Tensor, queries: QueryPositions) -> Tensor:
        """The sum of the embeddings of tokens and positions; see ``LayerStack.embed``."""
        if queries.segments is not None:
            positions = self.embed_positions.of_segments(queries.segments, "target" if queries.causal else "source")
        elif queries.causal:
            positions = self.embed_positions.of_target(queries.seen, queries.new, queries.start_offsets)
        else:
            positions = self.embed_positions.of_source(queries.new, queries.padding_mask)
        x = torch.add(positions, self.embed_tokens(tokens), alpha=self.embed_scale)
        embedded: Tensor = self.dropout(self.layernorm_embedding(x))
        return embedded

    def finish(self, x: Tensor) -> Tensor:
        """The features, given the output of the last layer."""
        features: Tensor = self.layer_norm(x)
        return features

    def max_positions(self) -> int:
        """The longest source or target, in tokens with end-of-sentence."""
        return self.embed_positions.max_positions


class TransformerEncoder(TransformerStack, Encoder):
    """Transformer encoder: layers of self-attention.

    Args:
        cfg: the configuration.
        embed_tokens: embedding of the source vocabulary; its ``padding_idx`` is the id of padding.
    """

    def __init__(self, cfg: TransformerConfig, embed_tokens: nn.Embedding):
        pad = embed_tokens.padding_idx
        super().__init__(cfg, "encoder", embed_tokens, pad, lambda _: TransformerEncoderLayer(cfg, "encoder"))

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, segments: Segments | None = None) -> EncoderOut:
        """Encode a batch of sentences; see ``Encoder.forward`` and, for ``segments``, ``supports_packing``."""
        padding_mask = padding_mask_of(src_tokens, self.embed_tokens.padding_idx) if segments is None else None
        x = self.embed(src_tokens, QueryPositions.of_source(src_tokens, segments, padding_mask))
        queries = QueryPositions.of_source(src_tokens, segments)
        for index, layer in self.layers.active():
            x, _ = layer(x, attn_mask=self.self_attention_mask(queries, index), key_padding_mask=padding_mask)
        return EncoderOut(self.finish(x), padding_mask)

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor | None:
        """The mask of self-attention in one layer, in addition to padding, which is always hidden.

        Args:
            queries: the positions of the source.
            layer: index of the layer.

        Returns:
            Bool, true where attention is allowed, or a float that is added to the scores, broadcastable to ``(N, H, S,
            S)``; ``None`` if each position attends to all others.
        """
        return queries.allowed


class TransformerDecoder(TransformerStack, LayeredDecoder):
    """Transformer decoder: layers of causal self-attention and encoder-decoder attention.

    Args:
        cfg: the configuration.
        embed_tokens: embedding of the target vocabulary.
        encoder_dim: dimension of the encoder's output.
    """

    def __init__(self, cfg: TransformerConfig, embed_tokens: nn.Embedding, encoder_dim: int):
        pad = embed_tokens.padding_idx
        super().__init__(cfg, "decoder", embed_tokens, pad, lambda _: TransformerDecoderLayer(cfg, encoder_dim))
        dim = cfg.decoder_embed_dim
        self.output_projection = Linear(dim, embed_tokens.num_embeddings, bias=cfg.output_bias)
        if cfg.output_bias:
            nn.init.zeros_(self.output_projection.bias)
        if cfg.share_all_embeddings or cfg.share_decoder_input_output_embed:
            self.output_projection.weight = embed_tokens.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=dim**-0.5)


def _positions(cfg: Any, side: str, dim: int, padding_idx: int | None) -> Positions:
    """The position table of one side."""
    assert padding_idx is not None
    before = padding_idx if cfg.position_offset is None else cfg.position_offset - 1
    num_rows = (cfg.max_source_positions if side == "encoder" else cfg.max_target_positions) + before + 1
    if getattr(cfg, f"{side}_learned_pos"):
        return LearnedPositions(num_rows, dim, before, std=dim**-0.5)
    return SinusoidalPositions(num_rows, dim, before, cfg.sinusoids)


def _sized(dim: int, ffn_dim: int, heads: int, layers: int, **values: Any) -> TransformerConfig:
    """A configuration with an encoder and a decoder of the same size."""
    sizes = {"embed_dim": dim, "ffn_embed_dim": ffn_dim, "attention_heads": heads, "layers": layers}
    values |= {f"{side}_{key}": size for side in ("encoder", "decoder") for key, size in sizes.items()}
    return TransformerConfig(**values)


@register_model(
    "transformer",
    config=TransformerConfig,
    presets={
        "transformer_tiny": _sized(128, 256, 4, 4, share_decoder_input_output_embed=True),
        "transformer_iwslt_de_en": _sized(512, 1024, 4, 6),
        "transformer_base": _sized(512, 2048, 8, 6),
        "transformer_big": _sized(1024, 4096, 16, 6, dropout=0.3),
    },
)
class TransformerModel(EncoderDecoderModel):
    """The transformer.

    Args:
        cfg: the configuration.
        encoder: the encoder that it describes.
        decoder: the decoder that it describes.
    """

    supports_packing = True
    decoder_class: type[TransformerDecoder] = TransformerDecoder
    """The class of the decoder, for a subclass whose decoder differs."""

    encoder: TransformerEncoder
    decoder: TransformerDecoder

    def __init__(self, cfg: TransformerConfig, encoder: TransformerEncoder, decoder: TransformerDecoder):
        super().__init__(encoder, decoder)
        self.cfg = cfg

    @classmethod
    def build_model(cls, cfg: TransformerConfig, task: Vocabularies) -> Self:
        """Build the model.

        Args:
            cfg: the configuration.
            task: gives the dictionaries.

        Raises:
            ConfigError: values of the configuration exclude each other, or do not fit the dictionaries.
        """
        source, target = task.source_dictionary, task.target_dictionary
        _check(cfg)
        embedding_sizes(task, 0, cfg.decoder_start_token_id)
        source_embedding = _embedding(source, cfg.encoder_embed_dim)
        shared = next((key for key in _SHARING if getattr(cfg, key)), None)
        if shared is None:
            target_embedding = _embedding(target, cfg.decoder_embed_dim)
        elif source is target or source == target:
            target_embedding = source_embedding
        else:
            raise ConfigError(
                f"model.{shared} needs one vocabulary for source and target; use a joint vocabulary, or "
                "model.share_decoder_input_output_embed=true"
            )
        encoder = TransformerEncoder(cfg, source_embedding)
        decoder = cls.decoder_class(cfg, target_embedding, cfg.encoder_embed_dim)
        return cls(cfg, encoder, decoder)

    def start_token(self, task_eos: int) -> int:
        """The id that ``prev_output_tokens`` begins with: ``decoder_start_token_id``, or else end-of-sentence."""
        return task_eos if self.cfg.decoder_start_token_id < 0 else self.cfg.decoder_start_token_id


_SHARING = ("share_all_embeddings", "share_encoder_decoder_embed")
"""The options that share one matrix for source and target embeddings."""


def _embedding(dictionary: Any, dim: int) -> nn.Embedding:
    return token_embedding(len(dictionary), dim, dictionary.pad(), std=dim**-0.5)


def check_layers(cfg: Any, *sides: str) -> None:
    """Check the keys of the layers of a transformer.

    Args:
        cfg: the configuration.
        sides: ``encoder``, ``decoder`` or both.

    Raises:
        ConfigError: a hidden size is not a multiple of the number of heads.
    """
    for side in sides:
        dim, heads = getattr(cfg, f"{side}_embed_dim"), getattr(cfg, f"{side}_attention_heads")
        if dim % heads:
            raise ConfigError(f"model.{side}_embed_dim={dim} is not a multiple of model.{side}_attention_heads={heads}")


def _check(cfg: TransformerConfig) -> None:
    check_layers(cfg, "encoder", "decoder")
    for key in _SHARING:
        if getattr(cfg, key) and cfg.encoder_embed_dim != cfg.decoder_embed_dim:
            raise ConfigError(
                f"model.{key} needs encoder_embed_dim and decoder_embed_dim to be the same, but they are "
                f"{cfg.encoder_embed_dim} and {cfg.decoder_embed_dim}"
            )
