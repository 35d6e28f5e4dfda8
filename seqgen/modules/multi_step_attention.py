"""The attention of the convolutional model (Gehring et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from seqgen.modules.attention import attend, fold_beams, unfold_beams, unfold_weights
from seqgen.modules.linear import weight_norm_linear


class MultiStepAttention(nn.Module):
    """Attention of one decoder layer, with one head and unscaled scores (Gehring et al. 2017).

    The query is the layer's output, projected, plus the embedding of the previous token. The keys are the encoder's
    features; the values are features plus source embeddings.

    Args:
        hidden_size: dimension of the layer's output.
        embed_dim: dimension of the embeddings and of the encoder's output.

    Attributes:
        on_weights: receives the weights of its head, ``(N, 1, T, S)``; see ``MultiheadAttention``.
    """

    def __init__(self, hidden_size: int, embed_dim: int):
        super().__init__()
        self.in_projection = weight_norm_linear(hidden_size, embed_dim)
        self.out_projection = weight_norm_linear(embed_dim, hidden_size)
        self.on_weights: Callable[[Tensor], None] | None = None

    def forward(
        self,
        x: Tensor,
        target_embedding: Tensor,
        keys: Tensor,
        values: Tensor,
        padding_mask: Tensor | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend and add the result to the layer's output.

        Args:
            x: ``(N, T, hidden_size)``.
            target_embedding: ``(N, T, embed_dim)``.
            keys: ``(N or sentences, S, embed_dim)``.
            values: ``(N or sentences, S, embed_dim)``.
            padding_mask: ``(N or sentences, S)`` bool, true at padding; ``None`` if there is no padding.
            need_weights: whether to return the weights.

        Returns:
            ``(N, T, hidden_size)``, and the weights, ``(N, T, S)`` or ``None``.
        """
        rows = x.shape[0]
        query = scaled_sum(self.in_projection(x), target_embedding)
        averages, weights = attend(
            fold_beams(query.unsqueeze(2), keys.size(0)),
            keys.unsqueeze(1),
            values.unsqueeze(1),
            None if padding_mask is None else ~padding_mask[:, None, None, :],
            scale=1,
            need_weights=need_weights or self.on_weights is not None,
        )
        if weights is not None:
            weights = unfold_weights(weights, rows)
            if self.on_weights is not None:
                self.on_weights(weights)
            weights = weights.squeeze(1) if need_weights else None
        return scaled_sum(self.out_projection(unfold_beams(averages, rows)), x), weights


def scaled_sum(x: Tensor, y: Tensor) -> Tensor:
    """``(x + y) * sqrt(0.5)``: its variance is that of ``x`` and ``y`` if these are independent and have equal ones."""
    return (x + y).mul_(math.sqrt(0.5))
