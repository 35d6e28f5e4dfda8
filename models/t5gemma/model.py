"""T5Gemma (Zhang et al. 2025, "Encoder-decoder Gemma"): the layers of Gemma 2 as an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from seqgen.decoder import IncrementalDecoder, ProjectedOutput
from seqgen.encoder import Encoder
from seqgen.incremental_state import StateDict
from seqgen.model import EncoderDecoderModel, Vocabularies, embedding_sizes
from seqgen.models.t5gemma.layers import (
    FULL,
    INIT_STD,
    PRESETS,
    SLIDING,
    T5GemmaConfig,
    T5GemmaDecoderLayer,
    T5GemmaEncoderLayer,
    t5gemma_norm,
)
from seqgen.modules.attention import soft_capped
from seqgen.modules.dropout import Dropout
from seqgen.modules.linear import Linear
from seqgen.modules.masks import QueryPositions, padding_mask_of, segment_mask
from seqgen.modules.positions import Rotation
from seqgen.registry import register_model
from seqgen.structures import EncoderOut, Segments


class T5GemmaEncoder(Encoder):
    """T5Gemma encoder.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding of the source.
        padding_idx: id of padding in the source.
    """

    def __init__(self, cfg: T5GemmaConfig, embed_tokens: nn.Embedding, padding_idx: int):
        super().__init__()
        self.cfg = cfg
        self.padding_idx = padding_idx
        self.embed_tokens = embed_tokens
        self.rotary = nn.ModuleList(cfg.rotary_positions("encoder"))
        self.layer_types = cfg.layer_types("encoder")
        self.layers = nn.ModuleList(T5GemmaEncoderLayer(cfg) for _ in range(cfg.encoder_layers))
        self.layer_norm = t5gemma_norm(cfg, "encoder")
        self.dropout = Dropout(cfg.dropout_rate)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, segments: Segments | None = None) -> EncoderOut:
        """Encode a batch of sentences; see ``Encoder.forward`` and, for ``segments``, ``supports_packing``."""
        padding_mask = padding_mask_of(src_tokens, self.padding_idx) if segments is None else None
        queries = QueryPositions.of_source(src_tokens, segments, padding_mask)
        x = self.dropout(_scaled(self.embed_tokens(src_tokens)))
        rotations = _rotations(self.rotary, queries, self.embed_tokens.weight)
        for index, layer in enumerate(self.layers):
            x = layer(x, self.self_attention_mask(queries, index), rotations[index])
        return EncoderOut(self.dropout(self.layer_norm(x)), padding_mask)

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

    def max_positions(self) -> int:
        """The longest source, in tokens with end-of-sentence."""
        return self.cfg.max_source_positions


class T5GemmaDecoder(ProjectedOutput, IncrementalDecoder):
    """T5Gemma decoder.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding of the target.
    """

    shares_encoder_output = True
    reads_history = False
    can_roll_back = True
    can_merge = True
    layer_class: type[T5GemmaEncoderLayer] = T5GemmaDecoderLayer
    """The class of the layers, for a subclass whose layers differ."""

    def __init__(self, cfg: T5GemmaConfig, embed_tokens: nn.Embedding):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = embed_tokens
        self.rotary = nn.ModuleList(cfg.rotary_positions("decoder"))
        self.layer_types = cfg.layer_types("decoder")
        self.layers = nn.ModuleList(self.layer_class(cfg) for _ in range(cfg.decoder_layers))
        self.layer_norm = t5gemma_norm(cfg, "decoder")
        self.dropout = Dropout(cfg.dropout_rate)
        self.output_projection = Linear(cfg.decoder_hidden_size, embed_tokens.num_embeddings, bias=False)
        if cfg.tie_word_embeddings:
            self.output_projection.weight = embed_tokens.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=INIT_STD)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
        segments: Segments | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the last hidden features; the attention is that of the last layer, averaged over its heads.

        See ``IncrementalDecoder.extract_features`` and, for ``segments``, ``EncoderDecoderModel.supports_packing``.
        """
        seen = self.positions_seen(incremental_state)
        tokens = prev_output_tokens[:, seen:]
        queries = QueryPositions.of_target(tokens, seen, incremental_state, segments)
        encoder_mask = None if segments is None else segment_mask(segments.target, segments.source)
        x = self.dropout(_scaled(self.embed_tokens(tokens)))
        rotations = _rotations(self.rotary, queries, self.embed_tokens.weight)
        attention = None
        for index, layer in enumerate(self.layers):
            x, attention = layer(
                x,
                self.self_attention_mask(queries, index),
                rotations[index],
                encoder_out.encoder_out,
                encoder_out.encoder_padding_mask,
                encoder_attn_mask=encoder_mask,
                incremental_state=incremental_state,
                need_weights=need_attention and index == len(self.layers) - 1,
            )
        self.advance(incremental_state, tokens.size(1))
        return self.dropout(self.layer_norm(x)), attention

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
        return None if queries.is_plain_causal else queries.allowed

    def output_layer(self, features: Tensor) -> Tensor:
        """Project features ``(..., C)`` to soft-capped logits ``(..., V)``."""
        return self._capped(super().output_layer(features))

    def output_columns(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Prepare the output layer for the tokens ``ids``; see ``Decoder.output_columns``."""
        columns = super().output_columns(ids)
        return lambda features: self._capped(columns(features))

    def output_product(self, features: Tensor) -> tuple[Tensor, Tensor] | None:
        """``None`` if logits are soft-capped, as they are then not a product; see ``Decoder.output_product``."""
        return None if self.cfg.final_logit_softcapping else super().output_product(features)

    def _capped(self, logits: Tensor) -> Tensor:
        bound = self.cfg.final_logit_softcapping
        return soft_capped(logits, bound) if bound else logits

    def max_positions(self) -> int:
        """The longest target, in tokens with end-of-sentence."""
        return self.cfg.max_target_positions


@register_model("t5gemma", config=T5GemmaConfig, presets=PRESETS)
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
        return cls(replace(cfg), *sizes, task.source_dictionary.pad())

    def start_token(self, task_eos: int) -> int:
        """The id that ``prev_output_tokens`` begins with: ``decoder_start_token_id``, or else end-of-sentence."""
        return task_eos if self.cfg.decoder_start_token_id < 0 else self.cfg.decoder_start_token_id


def _rotations(rotary: nn.ModuleList, queries: QueryPositions, like: Tensor) -> list[Rotation]:
    """The rotation of each layer, computed once for all layers that share it."""
    made = {positions: positions(queries, like) for positions in dict.fromkeys(rotary)}
    return [made[positions] for positions in rotary]


def _scaled(embedded: Tensor) -> Tensor:
    """The residual stream: embeddings times the square root of their dimension, which is rounded to their dtype.

    It is float32 in a float16 model, because sums over many layers exceed the range of float16.
    """
    scale = torch.full((), embedded.size(-1) ** 0.5, dtype=embedded.dtype, device=embedded.device)
    scaled = embedded * scale
    return scaled.float() if scaled.dtype == torch.float16 else scaled
