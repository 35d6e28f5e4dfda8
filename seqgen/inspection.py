"""Examines a model: embeddings in place of tokens, logits of chosen steps, attention heads masked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from seqgen.core.component import MEMBER_LOGITS
from seqgen.core.decoder import Decoder
from seqgen.core.encoder import Encoder
from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.observers import Observer, StepRecord
from seqgen.modules.inspection import attention_modules
from seqgen.modules.multihead_attention import MultiheadAttention


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
        sentences = zip(context.sentences.ids.tolist(), record.was_done.tolist(), strict=True)
        for row, (sentence, done) in enumerate(sentences):
            if not done:
                self.found[sentence][context.step] = [logits[row].clone() for logits in members]


@contextmanager
def masked_heads(
    model: EncoderDecoderModel,
    *,
    encoder: Tensor | None = None,
    decoder: Tensor | None = None,
    cross: Tensor | None = None,
) -> Iterator[None]:
    """Multiply the output of each attention head by a factor in the ``with`` block, in forward passes and in decoding.

    A factor of 0 removes a head (Michel et al. 2019, "Are sixteen heads really better than one?", section 2.2). Factors
    may require gradients.

    Args:
        model: the model.
        encoder: ``(layers, heads)``, or ``(heads,)`` for all layers: the factors of self-attention in the encoder.
        decoder: those of self-attention in the decoder.
        cross: those of encoder-decoder attention.

    Raises:
        ConfigError: the model has no such attention, or a mask has another shape.
    """
    with ExitStack() as stack:
        for name, mask in (("encoder", encoder), ("decoder", decoder), ("cross", cross)):
            if mask is None:
                continue
            modules = _attention_of(model, name)
            layers, heads = len(modules), modules[0].num_heads
            if tuple(mask.shape) not in ((heads,), (layers, heads)):
                raise ConfigError(
                    f"the mask {name} has the shape {tuple(mask.shape)}; give ({layers}, {heads}), the layers and "
                    f"heads of the model, or ({heads},) for all layers"
                )
            for attention, factors in zip(modules, mask.expand(layers, heads), strict=True):
                handle = attention.out_proj.register_forward_pre_hook(_scaling(attention.head_dim, factors))
                stack.callback(handle.remove)
        yield


def _attention_of(model: EncoderDecoderModel, name: str) -> list[MultiheadAttention]:
    """The attention modules that ``encoder``, ``decoder`` or ``cross`` names, one for each layer."""
    self_attention, cross = attention_modules(model.encoder if name == "encoder" else model.decoder)
    modules = cross if name == "cross" else self_attention
    found = [module for module in modules if isinstance(module, MultiheadAttention)]
    if not found:
        where = {"encoder": "self-attention in the encoder", "decoder": "self-attention in the decoder"}
        raise ConfigError(f"{type(model).__name__} has no heads of {where.get(name, 'encoder-decoder attention')}")
    return found


def _scaling(head_dim: int, factors: Tensor) -> Any:
    """A hook that multiplies the output of each head, the ``head_dim`` columns of its number, by its factor."""

    def hook(projection: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (heads,) = arguments
        return (heads * factors.to(heads).repeat_interleave(head_dim),)

    return hook
