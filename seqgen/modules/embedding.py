"""Token embeddings."""

from __future__ import annotations

from torch import nn


def token_embedding(num_embeddings: int, embedding_dim: int, padding_idx: int | None, std: float) -> nn.Embedding:
    """A normally distributed embedding whose padding row is zero.

    Args:
        num_embeddings: size of the vocabulary.
        embedding_dim: dimension of the embeddings.
        padding_idx: id of padding; ``None`` if no row is for padding only.
        std: standard deviation of the initial values.

    Returns:
        The embedding, with weight ``(num_embeddings, embedding_dim)``.
    """
    embedding = nn.Embedding(num_embeddings, embedding_dim, padding_idx)
    nn.init.normal_(embedding.weight, std=std)
    if padding_idx is not None:
        nn.init.zeros_(embedding.weight[padding_idx])
    return embedding
