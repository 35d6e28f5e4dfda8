"""The output layer of most decoders: a projection of the features onto the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from seqgen.core.decoder import Decoder
from seqgen.modules.attention import soft_capped
from seqgen.modules.linear import Linear


class ProjectedOutput(Decoder):
    """A decoder whose output layer is a matrix; it has an ``output_projection`` (``Linear``) and a ``layer_norm``."""

    output_projection: Any
    layer_norm: nn.Module

    soft_cap: float = 0.0
    """The bound of the logits, see ``attention.soft_capped``; 0 for none."""

    def projected_features(self, features: Tensor) -> Tensor:
        """The features ``(..., C)`` that are projected: by default those of the last layer, unchanged."""
        return features

    def output_layer(self, features: Tensor) -> Tensor:
        """Project features ``(..., C)`` to logits ``(..., V)``."""
        return self._capped(self.output_projection(self.projected_features(features)))

    def output_columns(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Prepare the output layer for the tokens ``ids``; see ``Decoder.output_columns``."""
        columns = self.output_projection.columns(ids)
        return lambda features: self._capped(columns(self.projected_features(features)))

    def _capped(self, logits: Tensor) -> Tensor:
        return soft_capped(logits, self.soft_cap) if self.soft_cap else logits

    def early_exit(self, hidden: Tensor) -> Tensor:
        """Logits ``(..., V)`` of the output ``(..., C)`` of any layer."""
        return self.output_layer(self.layer_norm(hidden))

    def output_product(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """The features, the weight and the bias of the projection, unless logits are bounded, which are no product."""
        if self.soft_cap:
            return None
        return self.projected_features(features), self.output_projection.matrix(), self.output_projection.bias


def make_output_projection(embed_tokens: nn.Embedding, tied: bool, std: float, bias: bool = False) -> Linear:
    """A projection of features onto the vocabulary.

    Args:
        embed_tokens: the embedding of the vocabulary, whose dimension is that of the features.
        tied: whether its weight is that of the projection.
        std: standard deviation of the initial weights if not.
        bias: whether to add a bias, first 0.
    """
    projection = Linear(embed_tokens.embedding_dim, embed_tokens.num_embeddings, bias=bias)
    if bias:
        nn.init.zeros_(projection.bias)
    if tied:
        projection.weight = embed_tokens.weight
    else:
        nn.init.normal_(projection.weight, std=std)
    return projection
