"""The output layer of most decoders: a projection of the features onto the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from seqgen.core.decoder import Decoder


class ProjectedOutput(Decoder):
    """A decoder whose output layer is a matrix; it has an ``output_projection`` (``Linear``) and a ``layer_norm``."""

    output_projection: Any
    layer_norm: nn.Module

    def projected_features(self, features: Tensor) -> Tensor:
        """The features ``(..., C)`` that are projected: by default those of the last layer, unchanged."""
        return features

    def output_layer(self, features: Tensor) -> Tensor:
        """Project features ``(..., C)`` to logits ``(..., V)``."""
        logits: Tensor = self.output_projection(self.projected_features(features))
        return logits

    def output_columns(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Prepare the output layer for the tokens ``ids``; see ``Decoder.output_columns``."""
        columns = self.output_projection.columns(ids)
        return lambda features: columns(self.projected_features(features))

    def early_exit(self, hidden: Tensor) -> Tensor:
        """Logits ``(..., V)`` of the output ``(..., C)`` of any layer."""
        return self.output_layer(self.layer_norm(hidden))

    def output_product(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """The features, the weight and the bias of the projection; see ``Decoder.output_product``."""
        return self.projected_features(features), self.output_projection.matrix(), self.output_projection.bias
