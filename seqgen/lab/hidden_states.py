"""Embeddings in place of tokens.

Records the logits of chosen steps of a search.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from seqgen.decoder import Decoder
from seqgen.encoder import Encoder
from seqgen.errors import ConfigError
from seqgen.generation.component import MEMBER_LOGITS
from seqgen.generation.observers import Observer, StepRecord


@contextmanager
def given_embeddings(part: Encoder | Decoder, embeddings: Tensor) -> Iterator[Tensor]:
    """Give an encoder or a decoder embeddings in place of tokens, as in prompt tuning (Lester et al. 2021).

    In the ``with`` block, ids above the vocabulary stand for the embeddings. They can be mixed with ids of the
    vocabulary, such as padding, and be read in forward passes and in decoding. Gradients flow to the embeddings.

    Args:
        part: the encoder or the decoder; it has an ``nn.Embedding`` ``embed_tokens``. The encoder and the decoder of
            some models share it, and then both know the ids.
        embeddings: ``(..., C)``, with the scale that the model's own embeddings have where positions are added to them.

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
    if embeddings.size(-1) != embedding.embedding_dim:
        raise ConfigError(
            f"embeddings of dimension {embeddings.size(-1)} are given to {type(part).__name__}, whose embeddings have "
            f"dimension {embedding.embedding_dim}"
        )
    before = embedding.__dict__.get("forward")
    rows = embeddings.reshape(-1, embeddings.size(-1)) / getattr(part, "embed_scale", 1.0)
    lookup = _Lookup(before or embedding.forward, rows, getattr(before, "end", embedding.num_embeddings))
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
        own = (ids >= self.first) & (ids < self.end)
        others = self.others(ids.masked_fill(own, 0))
        found = self.matrix[(ids - self.first).clamp(0, len(self.matrix) - 1)]
        return torch.where(own.unsqueeze(-1), found.to(others), others)


class StepLogits(Observer):
    """Keeps the logits of each beam at chosen steps, before processors change them.

    Args:
        steps: numbers of the steps, from 0; step ``t`` predicts token ``t``. ``None`` for all steps.

    Raises:
        ConfigError: a step is not such a number.

    Attributes:
        found: by number of the sentence and step, for each member ``(beam, V)`` logits, divided by the temperature, on
            the CPU. Steps after the end of a sentence are missing.
    """

    needs: ClassVar[frozenset[str]] = frozenset({MEMBER_LOGITS})

    def __init__(self, steps: Sequence[int] | None = None):
        if wrong := [step for step in steps or () if not isinstance(step, int) or step < 0]:
            raise ConfigError(f"StepLogits: {wrong[0]!r} is not the number of a step; the steps are counted from 0")
        self.steps = None if steps is None else frozenset(steps)
        self.found: dict[int, dict[int, list[Tensor]]] = defaultdict(dict)

    def observe(self, record: StepRecord) -> None:
        """See ``Observer.observe``."""
        context = record.context
        if self.steps is not None and context.step not in self.steps:
            return
        members = [context.by_sentence(logits).cpu() for logits in context.outputs.member_logits or []]
        for row, (sentence, done) in enumerate(
            zip(context.sentences.ids.tolist(), record.was_done.tolist(), strict=True)
        ):
            if not done:
                self.found[sentence][context.step] = [logits[row].clone() for logits in members]
