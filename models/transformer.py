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
from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.data.dictionary import Vocabularies, embedding_sizes
from seqgen.modules.dropout import Dropout, LayerDropList
from seqgen.modules.layered import LayeredDecoder, LayeredEncoder, LayerStack
from seqgen.modules.masks import QueryPositions
from seqgen.modules.positions import SINUSOIDS, LearnedPositions, Positions, SinusoidalPositions, token_embedding
from seqgen.modules.projected_output import make_output_projection
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
        self, cfg: Any, side: str, embed_tokens: nn.Embedding, padding_idx: int, make_layer: Callable[[int], nn.Module]
    ):
        super().__init__()
        dim = embed_tokens.embedding_dim
        before = padding_idx if cfg.position_offset is None else cfg.position_offset - 1
        num_rows = getattr(cfg, "max_source_positions" if side == "encoder" else "max_target_positions") + before + 1
        norm = partial(nn.LayerNorm, dim, cfg.layer_norm_epsilon)
        self.embed_tokens = embed_tokens
        self.embed_positions: Positions
        if getattr(cfg, f"{side}_learned_pos"):
            self.embed_positions = LearnedPositions(num_rows, dim, before, std=dim**-0.5)
        else:
            self.embed_positions = SinusoidalPositions(num_rows, dim, before, cfg.sinusoids)
        self.embed_scale = 1.0 if cfg.no_scale_embedding else math.sqrt(dim)
        self.layernorm_embedding = norm() if cfg.layernorm_embedding else nn.Identity()
        self.dropout = Dropout(cfg.dropout)
        layers = [make_layer(index) for index in range(getattr(cfg, f"{side}_layers"))]
        self.layers = LayerDropList(getattr(cfg, f"{side}_layerdrop"), layers)
        pre_norm = getattr(cfg, f"{side}_normalize_before") and not getattr(cfg, "no_decoder_final_norm", False)
        self.layer_norm = norm() if pre_norm else nn.Identity()

    def embed(self, tokens: Tensor, queries: QueryPositions) -> Tensor:
        """The sum of the embeddings of tokens and positions; see ``LayerStack.embed``."""
        x = torch.add(self.embed_positions(queries), self.embed_tokens(tokens), alpha=self.embed_scale)
        embedded: Tensor = self.dropout(self.layernorm_embedding(x))
        return embedded

    def finish(self, x: Tensor) -> Tensor:
        """The features, given the output of the last layer."""
        features: Tensor = self.layer_norm(x)
        return features

    def max_positions(self) -> int:
        """The longest source or target, in tokens with end-of-sentence."""
        return self.embed_positions.max_positions


class TransformerEncoder(TransformerStack, LayeredEncoder):
    """Transformer encoder: layers of self-attention.

    Args:
        cfg: the configuration.
        embed_tokens: embedding of the source vocabulary; its ``padding_idx`` is the id of padding.
    """

    def __init__(self, cfg: TransformerConfig, embed_tokens: nn.Embedding):
        pad = embed_tokens.padding_idx
        assert pad is not None
        super().__init__(cfg, "encoder", embed_tokens, pad, lambda _: TransformerEncoderLayer(cfg, "encoder"))
        self.padding_idx = pad


class TransformerDecoder(TransformerStack, LayeredDecoder):
    """Transformer decoder: layers of causal self-attention and encoder-decoder attention.

    Args:
        cfg: the configuration.
        embed_tokens: embedding of the target vocabulary.
        encoder_dim: dimension of the encoder's output.
    """

    def __init__(self, cfg: TransformerConfig, embed_tokens: nn.Embedding, encoder_dim: int):
        pad = embed_tokens.padding_idx
        assert pad is not None
        super().__init__(cfg, "decoder", embed_tokens, pad, lambda _: TransformerDecoderLayer(cfg, encoder_dim))
        tied, std = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed, cfg.decoder_embed_dim**-0.5
        self.output_projection = make_output_projection(embed_tokens, tied, std, cfg.output_bias)


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
        embedding_sizes(task, 0, cfg.decoder_start_token_id)
        source_embedding = _embedding(source, cfg.encoder_embed_dim)
        shared = next((key for key in _SHARING if getattr(cfg, key)), None)
        if shared is None:
            target_embedding = _embedding(target, cfg.decoder_embed_dim)
        elif (source is target or source == target) and cfg.encoder_embed_dim == cfg.decoder_embed_dim:
            target_embedding = source_embedding
        else:
            raise ConfigError(
                f"model.{shared} needs one vocabulary for source and target, and encoder_embed_dim and "
                "decoder_embed_dim to be the same; use a joint vocabulary, or "
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
