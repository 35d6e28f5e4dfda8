"""The convolutional model (Gehring et al. 2017, "Convolutional sequence to sequence learning")."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqgen.config import option
from seqgen.core.decoder import Decoder, IncrementalDecoder
from seqgen.core.encoder import Encoder
from seqgen.core.errors import ConfigError
from seqgen.core.incremental_state import StateDict
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import EncoderOut
from seqgen.data.dictionary import Vocabularies
from seqgen.modules.attention import MultiStepAttention, scaled_sum
from seqgen.modules.convolution import (
    ConvolutionSpec,
    ConvTBC,
    LinearizedConvolution,
    parse_choices,
    parse_convolutions,
    scale_gradient,
    weight_norm_conv,
)
from seqgen.modules.dropout import Dropout
from seqgen.modules.linear import Linear, weight_norm_linear
from seqgen.modules.masks import QueryPositions, padding_mask_of
from seqgen.modules.positions import LearnedPositions, token_embedding
from seqgen.modules.projected_output import ProjectedOutput
from seqgen.registry import register_model

_EMBEDDING_STD = 0.1


@dataclass
class FConvConfig:
    """Configuration of the convolutional model, with fairseq's names."""

    dropout: float = option(0.1, "dropout probability of features", minimum=0, maximum=0.99)
    encoder_embed_dim: int = option(512, "dimension of the encoder's embeddings and output", minimum=1)
    encoder_layers: str = option(
        "[(512, 3)] * 20", "encoder layers: a list of (dimension, kernel width) or (dimension, kernel width, residual)"
    )
    decoder_embed_dim: int = option(512, "dimension of the decoder's embeddings", minimum=1)
    decoder_layers: str = option(
        "[(512, 3)] * 20", "decoder layers: a list of (dimension, kernel width) or (dimension, kernel width, residual)"
    )
    decoder_out_embed_dim: int = option(256, "dimension of the features before the output projection", minimum=1)
    decoder_attention: str = option(
        "True", "which decoder layers attend to the source: True for all, or a list such as [True, False] * 10"
    )
    share_input_output_embed: bool = option(
        False, "use the decoder's input embedding as its output projection (tied weights)"
    )
    max_source_positions: int = option(1024, "rows of the source positions, 2 more than the longest source", minimum=3)
    max_target_positions: int = option(1024, "rows of the target positions, 2 more than the longest target", minimum=3)


@dataclass(frozen=True)
class FConvEncoderOut(EncoderOut):
    """The convolutional encoder's output.

    Attributes:
        values: ``(N, S, C)``, the values of attention: features plus input embeddings, multiplied by the square root of
            the sentence's length. The keys are ``encoder_out``.
    """

    values: Tensor = field(kw_only=True)


class FConvStack(nn.Module):
    """Embeddings and convolutions, which encoder and decoder share.

    Args:
        cfg: the configuration.
        side: ``"source"`` or ``"target"``.
        embed_tokens: embedding of the vocabulary; its ``padding_idx`` is the id of padding.
        layers: the convolutional layers.
    """

    embed_tokens: nn.Embedding

    def __init__(self, cfg: FConvConfig, side: str, embed_tokens: nn.Embedding, layers: list[ConvolutionSpec]):
        super().__init__()
        dim, padding_idx = embed_tokens.embedding_dim, embed_tokens.padding_idx
        assert padding_idx is not None
        inputs = [layers[0].channels, *(layer.channels for layer in layers[:-1])]
        self.dropout = Dropout(cfg.dropout)
        self.embed_tokens = embed_tokens
        num_positions = getattr(cfg, f"max_{side}_positions")
        self.embed_positions = LearnedPositions(num_positions, dim, padding_idx, std=_EMBEDDING_STD)
        self.fc1 = weight_norm_linear(dim, layers[0].channels, cfg.dropout)
        self.residuals = [layer.residual for layer in layers]
        self.projections = _projections(layers, inputs)
        kind = ConvTBC if side == "source" else LinearizedConvolution
        self.convolutions = nn.ModuleList(
            weight_norm_conv(kind(channels, 2 * layer.channels, layer.kernel_width), cfg.dropout)
            for channels, layer in zip(inputs, layers, strict=True)
        )

    def max_positions(self) -> int:
        """The longest source or target, in tokens with end-of-sentence."""
        return self.embed_positions.max_positions


class FConvEncoder(FConvStack, Encoder):
    """Convolutional encoder: layers of gated convolutions.

    Args:
        cfg: the configuration.
        embed_tokens: embedding of the source vocabulary; its ``padding_idx`` is the id of padding.
        layers: the convolutions.
        num_attention_layers: number of decoder layers with attention; the gradient is divided by twice this number.
    """

    def __init__(
        self, cfg: FConvConfig, embed_tokens: nn.Embedding, layers: list[ConvolutionSpec], num_attention_layers: int
    ):
        super().__init__(cfg, "source", embed_tokens, layers)
        self.num_attention_layers = num_attention_layers
        self.fc2 = weight_norm_linear(layers[-1].channels, embed_tokens.embedding_dim)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> FConvEncoderOut:
        """Encode a batch of sentences; see ``Encoder.forward``."""
        padding_mask = padding_mask_of(src_tokens, self.embed_tokens.padding_idx)
        positions = self.embed_positions(QueryPositions.of_source(src_tokens, None, padding_mask))
        embedded = self.dropout(self.embed_tokens(src_tokens) + positions)

        x = self.fc1(embedded)
        history = [x]
        for convolution, projection, back in zip(self.convolutions, self.projections, self.residuals, strict=True):
            residual = projection(history[-back]) if back > 0 else None
            x = F.glu(convolution(_zero(self.dropout(x), padding_mask)), dim=-1)
            x = x if residual is None else scaled_sum(x, residual)
            history.append(x)
        x = _zero(self.fc2(x), padding_mask)

        # Each attention layer adds two gradients here, of keys and of values; their mean is used (Gehring et al. 2017).
        x = scale_gradient(x, 1 / (2 * self.num_attention_layers))
        return FConvEncoderOut(x, padding_mask, values=scaled_sum(x, embedded) * _sqrt_lengths(x, padding_mask))


class FConvDecoder(FConvStack, ProjectedOutput, IncrementalDecoder):
    """Convolutional decoder: gated causal convolutions, with attention to the source in some layers.

    Args:
        cfg: the configuration.
        embed_tokens: embedding of the target vocabulary.
        layers: the convolutions.
        attention: for each of them, whether it attends to the source.
    """

    shares_encoder_output = True
    reads_history = False
    can_roll_back = True
    can_merge = True
    early_exit = Decoder.early_exit  # not supported

    def __init__(
        self, cfg: FConvConfig, embed_tokens: nn.Embedding, layers: list[ConvolutionSpec], attention: list[bool]
    ):
        super().__init__(cfg, "target", embed_tokens, layers)
        dim, out_dim = embed_tokens.embedding_dim, cfg.decoder_out_embed_dim
        self.attention = nn.ModuleList(
            MultiStepAttention(layer.channels, dim) if attends else None  # type: ignore[misc]  # a ModuleList may have gaps
            for layer, attends in zip(layers, attention, strict=True)
        )
        self.fc2 = weight_norm_linear(layers[-1].channels, out_dim)
        if cfg.share_input_output_embed:
            self.fc3 = Linear(out_dim, embed_tokens.num_embeddings)
            self.fc3.weight = embed_tokens.weight
        else:
            self.fc3 = weight_norm_linear(out_dim, embed_tokens.num_embeddings, cfg.dropout)

    def extract_features(  # type: ignore[override]  # needs the output of a convolutional encoder
        self,
        prev_output_tokens: Tensor,
        encoder_out: FConvEncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the last hidden features; the attention is the mean over the layers with attention.

        See ``IncrementalDecoder.extract_features``.
        """
        seen = self.positions_seen(incremental_state)
        tokens = prev_output_tokens[:, seen:]
        queries = QueryPositions.of_target(tokens, seen, incremental_state, None)
        embedded = self.dropout(self.embed_tokens(tokens) + self.embed_positions(queries))
        before_start = None  # true at positions before the start offset of a row, which are zeros for convolutions
        if queries.start_offsets is not None:
            steps = torch.arange(seen, seen + tokens.size(1), device=tokens.device)
            before_start = steps < queries.start_offsets.unsqueeze(1)

        x = self.fc1(embedded)
        history = [x]
        maps: list[Tensor] = []
        source = encoder_out.encoder_out, encoder_out.values, encoder_out.encoder_padding_mask
        for convolution, attention, projection, back in zip(
            self.convolutions, self.attention, self.projections, self.residuals, strict=True
        ):
            residual = projection(history[-back]) if back > 0 else None
            x = F.glu(convolution(_zero(self.dropout(x), before_start), incremental_state), dim=-1)
            if attention is not None:
                x, weights = attention(x, embedded, *source, need_weights=need_attention)
                maps += [] if weights is None else [weights]
            x = x if residual is None else scaled_sum(x, residual)
            history.append(x)
        self.advance(incremental_state, tokens.size(1))
        return self.dropout(self.fc2(x)), torch.stack(maps).mean(0) if maps else None

    @property
    def output_projection(self) -> Linear:  # type: ignore[override]
        """The output layer, by the name of other decoders."""
        return self.fc3


def _projections(layers: list[ConvolutionSpec], dims: list[int]) -> nn.ModuleList:
    """Projections of the residual of each layer to the dimension of the layer's output.

    With layers of dimension 512, 512 and 1024, whose residuals are their inputs, only the third needs a projection.
    """
    modules: list[nn.Module] = []
    for i, layer in enumerate(layers):
        inputs = dims[i + 1 - layer.residual] if layer.residual > 0 else layer.channels
        modules.append(nn.Identity() if inputs == layer.channels else weight_norm_linear(inputs, layer.channels))
    return nn.ModuleList(modules)


def _zero(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the positions ``(N, T)`` of ``x`` ``(N, T, C)`` where ``mask`` is true."""
    return x if mask is None else x.masked_fill(mask.unsqueeze(-1), 0)


def _sqrt_lengths(x: Tensor, padding_mask: Tensor | None) -> Tensor | float:
    """The square root of each sentence's length, ``(N, 1, 1)``.

    A mean of m vectors of equal variance has a standard deviation smaller by a factor of sqrt(m) (Gehring et al.
    2017).
    """
    if padding_mask is None:
        return math.sqrt(x.size(1))
    return (~padding_mask).sum(1).to(x.dtype).sqrt().view(-1, 1, 1)


def _sized(embed_dim: int, out_embed_dim: int, encoder: str, decoder: str | None = None) -> FConvConfig:
    """A configuration with equal embedding dimensions of encoder and decoder and, by default, equal layers."""
    return FConvConfig(
        encoder_embed_dim=embed_dim,
        encoder_layers=encoder,
        decoder_embed_dim=embed_dim,
        decoder_layers=decoder or encoder,
        decoder_out_embed_dim=out_embed_dim,
    )


@register_model(
    "fconv",
    config=FConvConfig,
    presets={
        "fconv_tiny": _sized(128, 128, "[(128, 3)] * 4", "[(128, 3)] * 3"),
        "fconv_iwslt_de_en": _sized(256, 256, "[(256, 3)] * 4", "[(256, 3)] * 3"),
        "fconv_wmt_en_de": _sized(768, 512, "[(512, 3)] * 9 + [(1024, 3)] * 4 + [(2048, 1)] * 2"),
        "fconv_wmt_en_fr": _sized(
            768, 512, "[(512, 3)] * 6 + [(768, 3)] * 4 + [(1024, 3)] * 3 + [(2048, 1)] + [(4096, 1)]"
        ),
    },
)
class FConvModel(EncoderDecoderModel):
    """The convolutional model."""

    @classmethod
    def build_model(cls, cfg: FConvConfig, task: Vocabularies) -> Self:
        """Build the model.

        Args:
            cfg: the configuration.
            task: gives the dictionaries.

        Raises:
            ConfigError: values of the configuration exclude each other.
        """
        encoder_layers = parse_convolutions("model.encoder_layers", cfg.encoder_layers)
        decoder_layers = parse_convolutions("model.decoder_layers", cfg.decoder_layers)
        attention = parse_choices("model.decoder_attention", cfg.decoder_attention, len(decoder_layers))
        _check(cfg, attention)
        source_embedding = _embedding(task.source_dictionary, cfg.encoder_embed_dim)
        encoder = FConvEncoder(cfg, source_embedding, encoder_layers, sum(attention))
        target_embedding = _embedding(task.target_dictionary, cfg.decoder_embed_dim)
        return cls(encoder, FConvDecoder(cfg, target_embedding, decoder_layers, attention))


def _embedding(dictionary: Any, dim: int) -> nn.Embedding:
    return token_embedding(len(dictionary), dim, dictionary.pad(), std=_EMBEDDING_STD)


def _check(cfg: FConvConfig, attention: list[bool]) -> None:
    if not any(attention):
        raise ConfigError("model.decoder_attention: at least one decoder layer must attend to the source")
    if cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise ConfigError(
            "model.encoder_embed_dim and model.decoder_embed_dim must be equal, because attention adds them, but they "
            f"are {cfg.encoder_embed_dim} and {cfg.decoder_embed_dim}"
        )
    if cfg.share_input_output_embed and cfg.decoder_out_embed_dim != cfg.decoder_embed_dim:
        raise ConfigError(
            "model.share_input_output_embed needs decoder_out_embed_dim and decoder_embed_dim to be the same, but they "
            f"are {cfg.decoder_out_embed_dim} and {cfg.decoder_embed_dim}"
        )
