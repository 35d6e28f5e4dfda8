"""Encoders and decoders that are stacks of layers, apart from their embeddings and the layers themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from seqgen.core.decoder import IncrementalDecoder
from seqgen.core.encoder import Encoder
from seqgen.core.incremental_state import StateDict
from seqgen.core.structures import EncoderOut, Segments
from seqgen.modules.dropout import Dropout, LayerDropList
from seqgen.modules.masks import QueryPositions, padding_mask_of, segment_mask
from seqgen.modules.projected_output import ProjectedOutput


class LayerStack(nn.Module):
    """What encoders and decoders share; a subclass sets the attributes and implements ``embed``.

    Attributes:
        cfg: the configuration of the model.
        layers: modules that are called like ``AttentionLayer``.
        layer_norm: the module after the last layer.
        dropout: drops features.
    """

    cfg: Any
    layers: LayerDropList
    layer_norm: nn.Module
    dropout: Dropout

    def embed(self, tokens: Tensor, queries: QueryPositions) -> Tensor:
        """The input of the first layer.

        Args:
            tokens: ``(N, T)`` int64, the tokens that are computed.
            queries: their positions.

        Returns:
            ``(N, T, C)``.
        """
        raise NotImplementedError

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor | None:
        """The mask of self-attention in one layer.

        Args:
            queries: the positions that are computed, and those that the state has seen.
            layer: index of the layer.

        Returns:
            Bool, true where attention is allowed, or a float that is added to the scores, broadcastable to ``(N, H, T,
            K)``; ``None`` if only later positions of a decoder are hidden.
        """
        return None if queries.is_plain_causal else queries.allowed

    def layer_options(self, queries: QueryPositions) -> Sequence[Mapping[str, Any]]:
        """Further keyword arguments of each layer."""
        return [{}] * len(self.layers)

    def run(
        self, tokens: Tensor, queries: QueryPositions, *source: Tensor | None, need_weights: bool = False, **shared: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Run all layers.

        Args:
            tokens: ``(N, T)`` int64, the tokens that are computed.
            queries: their positions.
            source: the encoder's output and its padding mask, in a decoder with attention to the source.
            need_weights: whether to return the attention weights.
            shared: keyword arguments of all layers.

        Returns:
            The features ``(N, T, C)``, and the last layer's weights over the source, ``(N, T, S)`` or ``None``.
        """
        x, options = self.embed(tokens, queries), self.layer_options(queries)
        weights, last = None, len(self.layers) - 1
        for index, layer in self.layers.active():
            mask = self.self_attention_mask(queries, index)
            if queries.causal:
                shared["is_causal"] = mask is None
            needed = need_weights and index == last
            x, weights = layer(x, *source, attn_mask=mask, need_weights=needed, **shared, **options[index])
        return self.finish(x), weights

    def finish(self, x: Tensor) -> Tensor:
        """The features, given the output of the last layer."""
        features: Tensor = self.dropout(self.layer_norm(x))
        return features


class LayeredEncoder(LayerStack, Encoder):
    """An encoder that is a stack of layers.

    Attributes:
        padding_idx: id of padding.
    """

    padding_idx: int

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, segments: Segments | None = None) -> EncoderOut:
        """Encode a batch of sentences; see ``Encoder.forward`` and, for ``segments``, ``supports_packing``."""
        padding_mask = padding_mask_of(src_tokens, self.padding_idx) if segments is None else None
        queries = QueryPositions.of_source(src_tokens, segments, padding_mask)
        return EncoderOut(self.run(src_tokens, queries)[0], padding_mask)

    def max_positions(self) -> int:
        """The longest source, in tokens with end-of-sentence."""
        return int(self.cfg.max_source_positions)


class LayeredDecoder(LayerStack, ProjectedOutput, IncrementalDecoder):
    """A decoder that is a stack of layers with attention to the source, and a projection to the vocabulary."""

    shares_encoder_output = True
    reads_history = False
    can_roll_back = True
    can_merge = True

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
        segments: Segments | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the last features and the last layer's attention; see ``IncrementalDecoder.extract_features``.

        For ``segments`` see ``EncoderDecoderModel.supports_packing``.
        """
        seen = self.positions_seen(incremental_state)
        tokens = prev_output_tokens[:, seen:]
        queries = QueryPositions.of_target(tokens, seen, incremental_state, segments)
        encoder_mask = None if segments is None else segment_mask(segments.target, segments.source)
        source = encoder_out.encoder_out, encoder_out.encoder_padding_mask
        state = {"incremental_state": incremental_state, "encoder_attn_mask": encoder_mask}
        found = self.run(tokens, queries, *source, need_weights=need_attention, **state)
        self.advance(incremental_state, tokens.size(1))
        return found

    def max_positions(self) -> int:
        """The longest target, in tokens with end-of-sentence."""
        return int(self.cfg.max_target_positions)
