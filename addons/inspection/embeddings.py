"""Embeddings, or mixtures of tokens, that an encoder or a decoder reads in place of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from seqgen.extend import ConfigError, Decoder, Encoder


@contextmanager
def given_embeddings(part: Encoder | Decoder, embeddings: Tensor, mixtures: bool = False) -> Iterator[Tensor]:
    """Give an encoder or a decoder embeddings in place of tokens, as in prompt tuning (Lester et al. 2021).

    In the ``with`` block, ids above the vocabulary stand for the embeddings. They can be mixed with ids of the
    vocabulary, such as padding, and be read in forward passes, in training and in decoding, also by single steps with a
    block for each. Gradients flow to the embeddings.

    Args:
        part: the encoder or the decoder; it has an ``nn.Embedding`` ``embed_tokens``. The encoder and the decoder of
            some models share it, and then both know the ids.
        embeddings: ``(..., C)``, with the scale that the model's embeddings have where positions are added to them.
        mixtures: whether ``embeddings`` has ``(..., V)``, weights of the tokens, such as probabilities, in their place.

    Yields:
        Ids ``(...)`` int64, one for each embedding.

    Raises:
        ConfigError: the model has no such embedding, or one of another dimension.
    """
    embedding = getattr(part, "embed_tokens", None)
    if not isinstance(embedding, nn.Embedding):
        raise ConfigError(
            f"{type(part).__name__} cannot be given embeddings: it has no nn.Embedding `embed_tokens`; a decoder-only "
            "model has it in its decoder"
        )
    size = embedding.num_embeddings if mixtures else embedding.embedding_dim
    if embeddings.size(-1) != size:
        what = "mixtures" if mixtures else "embeddings"
        raise ConfigError(
            f"{what} of dimension {embeddings.size(-1)} are given to {type(part).__name__}, whose {what} have "
            f"dimension {size}"
        )
    before = embedding.__dict__.get("forward")
    look_up, rows = before or embedding.forward, embeddings.reshape(-1, size)
    if mixtures:
        tokens = look_up(torch.arange(size, device=rows.device))
        rows = rows.to(tokens) @ tokens
    else:
        rows = rows / getattr(part, "embed_scale", 1.0)
    lookup = _Lookup(look_up, rows, getattr(before, "end", embedding.num_embeddings))
    embedding.__dict__["forward"] = lookup  # hides the method of the class
    try:
        ids = torch.arange(lookup.first, lookup.end, device=embeddings.device)
        yield ids.view(embeddings.shape[:-1])
    finally:
        del embedding.__dict__["forward"]
        if before is not None:
            embedding.__dict__["forward"] = before


class _Lookup:
    """Looks up ids from ``first`` on in a matrix ``(rows, C)``, and all others in the embedding."""

    def __init__(self, others: Callable[[Tensor], Tensor], matrix: Tensor, first: int):
        self.others, self.matrix = others, matrix
        self.first, self.end = first, first + len(matrix)

    def __call__(self, ids: Tensor) -> Tensor:
        given = (ids >= self.first) & (ids < self.end)
        others = self.others(ids.masked_fill(given, 0))
        found = self.matrix[(ids - self.first).clamp(0, len(self.matrix) - 1)]
        return torch.where(given.unsqueeze(-1), found.to(others), others)
