"""T5 (Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text transformer").

One class implements all variants: T5 1.0 and 1.1, Flan-T5, mT5, ByT5 and umT5 differ only in their configurations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from seqgen.decoder import IncrementalDecoder, ProjectedOutput
from seqgen.encoder import Encoder
from seqgen.incremental_state import StateDict
from seqgen.model import EncoderDecoderModel, Vocabularies, check_joined, embedding_sizes
from seqgen.models.t5.layers import PRESETS, T5Config, T5DecoderLayer, T5EncoderLayer, checkpointed
from seqgen.modules.dropout import Dropout
from seqgen.modules.linear import Linear
from seqgen.modules.masks import QueryPositions, padding_mask_of, segment_mask
from seqgen.modules.positions import RelativePositionBias
from seqgen.modules.rms_norm import RMSNorm
from seqgen.registry import register_model
from seqgen.structures import EncoderOut, Segments


class T5Encoder(Encoder):
    """T5 encoder: layers of self-attention with relative position biases.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding, shared with the decoder.
        padding_idx: id of padding.
    """

    def __init__(self, cfg: T5Config, embed_tokens: nn.Embedding, padding_idx: int):
        super().__init__()
        self.cfg = cfg
        self.padding_idx = padding_idx
        self.embed_tokens = embed_tokens
        self.position_biases = _position_biases(cfg, cfg.num_layers, bidirectional=True)
        self.layers = nn.ModuleList(T5EncoderLayer(cfg) for _ in range(cfg.num_layers))
        self.layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        self.dropout = Dropout(cfg.dropout_rate)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, segments: Segments | None = None) -> EncoderOut:
        """Encode a batch of sentences; see ``Encoder.forward`` and, for ``segments``, ``supports_packing``."""
        padding_mask = padding_mask_of(src_tokens, self.padding_idx) if segments is None else None
        queries = QueryPositions.of_source(src_tokens, segments, padding_mask)
        x = self.dropout(_residual(self.embed_tokens(src_tokens)))
        recompute = self.cfg.checkpoint_activations and self.training
        for index, layer in enumerate(self.layers):
            bias = self.self_attention_mask(queries, index)
            x = checkpointed(layer, x, bias) if recompute else layer(x, bias)
        return EncoderOut(self.dropout(self.layer_norm(x)), padding_mask)

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor:
        """The position bias and mask of self-attention in one layer.

        Args:
            queries: the positions of the source.
            layer: index of the layer.

        Returns:
            ``(1 or N, H, S, S)``, added to the scores; it hides padding.
        """
        return _biased(self.position_biases, queries, layer)

    def max_positions(self) -> int:
        """The longest source, in tokens with end-of-sentence."""
        return self.cfg.max_source_positions


class T5Decoder(ProjectedOutput, IncrementalDecoder):
    """T5 decoder: layers of causal self-attention and encoder-decoder attention.

    Padding among the target tokens is not masked, since padding is the start token.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding, shared with the encoder.
    """

    shares_encoder_output = True
    reads_history = False
    can_roll_back = True
    can_merge = True

    def __init__(self, cfg: T5Config, embed_tokens: nn.Embedding):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = embed_tokens
        self.position_biases = _position_biases(cfg, cfg.decoder_layers, bidirectional=False)
        self.layers = nn.ModuleList(T5DecoderLayer(cfg) for _ in range(cfg.decoder_layers))
        self.layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        self.dropout = Dropout(cfg.dropout_rate)
        self.output_projection = Linear(cfg.d_model, embed_tokens.num_embeddings, bias=False)
        if cfg.tie_word_embeddings:
            self.output_projection.weight = embed_tokens.weight
        else:
            nn.init.normal_(self.output_projection.weight)

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
        x = self.dropout(_residual(self.embed_tokens(tokens)))
        recompute = self.cfg.checkpoint_activations and self.training and incremental_state is None
        attention = None
        for index, layer in enumerate(self.layers):
            bias = self.self_attention_mask(queries, index)
            need_weights = need_attention and index == len(self.layers) - 1
            memory = (encoder_out.encoder_out, encoder_out.encoder_padding_mask)
            if recompute:
                x, attention = checkpointed(layer, x, bias, *memory, None, need_weights, encoder_mask)
            else:
                x, attention = layer(x, bias, *memory, incremental_state, need_weights, encoder_mask)
        self.advance(incremental_state, tokens.size(1))
        return self.dropout(self.layer_norm(x)), attention

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor:
        """The position bias and causal mask of self-attention in one layer.

        Args:
            queries: the new positions.
            layer: index of the layer.

        Returns:
            ``(1 or N, H, new, K)``, added to the scores.
        """
        return _biased(self.position_biases, queries, layer)

    def projected_features(self, features: Tensor) -> Tensor:
        """Scale the features: a tied embedding has values of variance 1, so logits would have variance d_model."""
        return features * self.cfg.d_model**-0.5 if self.cfg.scales_outputs else features

    def max_positions(self) -> int:
        """The longest target, in tokens with end-of-sentence."""
        return self.cfg.max_target_positions


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
        cfg.check()
        check_joined(task, "t5")
        _, rows = embedding_sizes(task, cfg.vocab_size, cfg.decoder_start_token_id)
        return cls(replace(cfg, vocab_size=rows), task.target_dictionary.pad())

    def start_token(self, task_eos: int) -> int:
        """The id that ``prev_output_tokens`` begins with: ``decoder_start_token_id``, or padding if that is not set."""
        return self.padding_idx if self.cfg.decoder_start_token_id < 0 else self.cfg.decoder_start_token_id

    @torch.no_grad()
    def resize_token_embeddings(self, num_embeddings: int) -> None:
        """Change the size of the vocabulary.

        Ids keep their embeddings; new rows are initialized as in a new model. An optimizer that was created before has
        the old parameters and must be created again.

        Args:
            num_embeddings: rows of the embedding and of the output projection.

        Raises:
            ValueError: the id of padding or of the start token would be outside the vocabulary.
        """
        highest = max(self.padding_idx, self.cfg.decoder_start_token_id)
        if num_embeddings <= highest:
            raise ValueError(
                f"{num_embeddings} rows are too few: the id of padding or of the first decoder input is {highest}"
            )
        embedding, projection = self.decoder.embed_tokens, self.decoder.output_projection
        embedding.weight = _resized(embedding.weight, num_embeddings)
        projection.weight = (
            embedding.weight if self.cfg.tie_word_embeddings else _resized(projection.weight, num_embeddings)
        )
        embedding.num_embeddings = projection.out_features = num_embeddings
        self.cfg = replace(self.cfg, vocab_size=num_embeddings)


def _position_biases(cfg: T5Config, layers: int, bidirectional: bool) -> nn.ModuleList:
    """One bias that all layers share, or one for each layer."""
    buckets, distance = cfg.relative_attention_num_buckets, cfg.relative_attention_max_distance
    biases = [
        RelativePositionBias(cfg.num_heads, buckets, distance, bidirectional)
        for _ in range(layers if cfg.per_layer_bias else 1)
    ]
    for bias in biases:
        nn.init.normal_(bias.weight, std=cfg.d_model**-0.5)
    return nn.ModuleList(biases)


def _resized(weight: Tensor, rows: int) -> nn.Parameter:
    """The first ``rows`` rows of a weight; further rows are random."""
    resized = torch.randn(rows, weight.size(1), device=weight.device).to(weight.dtype)
    kept = min(rows, weight.size(0))
    resized[:kept] = weight[:kept]
    return nn.Parameter(resized, requires_grad=weight.requires_grad)


def _residual(embedded: Tensor) -> Tensor:
    """The residual stream: float32 in a float16 model, because sums over many layers exceed the range of float16."""
    return embedded.float() if embedded.dtype == torch.float16 else embedded


def _biased(biases: nn.ModuleList, queries: QueryPositions, layer: int) -> Tensor:
    """The relative position bias of a layer, with a large negative number where attention is not allowed.

    Distances do not depend on the start offset of a row or on the place of an example in its row.
    """
    bias = biases[min(layer, len(biases) - 1)]
    return queries.once(bias, lambda: queries.restrict(bias(queries.seen, queries.new, queries.seen + queries.new)))
