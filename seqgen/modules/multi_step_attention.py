"""The attention of the convolutional model (Gehring et al. 2017, section 3.3)."""

from __future__ import annotations

import math

from torch import Tensor, nn

from seqgen.modules.attention import attend, fold_beams, unfold_beams
from seqgen.modules.linear import weight_norm_linear


class MultiStepAttention(nn.Module):
    """Attention of one decoder layer, with one head and scores that are not scaled.

    It asks with the layer's output together with the embedding of the token before. Keys and values differ: scores come
    from the encoder's features, averages are over features with the source's embeddings.

    Args:
        channels: channels of the layer's output.
        embed_dim: channels of the embeddings and of the encoder's output.
    """

    def __init__(self, channels: int, embed_dim: int):
        super().__init__()
        self.in_projection = weight_norm_linear(channels, embed_dim)
        self.out_projection = weight_norm_linear(embed_dim, channels)

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
            x: ``(N, T, channels)``.
            target_embedding: ``(N, T, embed_dim)``.
            keys: ``(N or sentences, S, embed_dim)``.
            values: ``(N or sentences, S, embed_dim)``.
            padding_mask: ``(N or sentences, S)`` bool, true at padding; ``None`` where there is none.
            need_weights: whether the weights are wanted.

        Returns:
            ``(N, T, channels)``, and the weights ``(N, T, S)`` where wanted.
        """
        rows, length, _ = x.shape
        query = scaled_sum(self.in_projection(x), target_embedding)
        averages, weights = attend(
            fold_beams(query.unsqueeze(2), keys.size(0)),
            keys.unsqueeze(1),
            values.unsqueeze(1),
            None if padding_mask is None else ~padding_mask[:, None, None, :],
            scale=1,
            need_weights=need_weights,
        )
        x = scaled_sum(self.out_projection(unfold_beams(averages, rows)), x)
        return x, None if weights is None else weights.reshape(rows, length, -1)


def scaled_sum(x: Tensor, y: Tensor) -> Tensor:
    """Add two things of equal variance so that the sum has that variance too."""
    return (x + y).mul_(math.sqrt(0.5))
