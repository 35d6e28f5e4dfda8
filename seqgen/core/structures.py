"""Typed values that the parts of the engine pass to each other.

Shape letters, here and everywhere: ``N`` rows, ``S`` source length, ``T`` target length, ``C`` hidden size, ``V``
vocabulary size. A row is one hypothesis of one sentence; rows are sentence-major, so row ``i`` is beam ``i % beam`` of
sentence ``i // beam``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

T = TypeVar("T")


def map_tensors(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to each tensor in nested dataclasses, dicts, lists and tuples.

    Args:
        value: any value; those that are none of these types are returned unchanged.
        fn: the function.

    Returns:
        A new value of the same structure.
    """
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, fn) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, fn) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, fn) for item in value)
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return replace(value, **{f.name: map_tensors(getattr(value, f.name), fn) for f in fields(value)})
    return value


def forked(value: Any) -> Any:
    """A copy whose lists, tuples and dicts are new, and whose objects with a method ``fork`` are forked."""
    if hasattr(value, "fork"):
        return value.fork()
    if type(value) is dict:
        return {key: forked(item) for key, item in value.items()}
    return type(value)(map(forked, value)) if type(value) in (list, tuple) else value


def with_forked_attributes(value: T) -> T:
    """A shallow copy of an object whose attributes are forked; see ``forked``."""
    other = copy.copy(value)
    vars(other).update({name: forked(attribute) for name, attribute in vars(value).items()})
    return other


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in nested dataclasses, dicts, lists and tuples, in the order of ``map_tensors``."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(value, note)
    return tensors


def copy_to_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors of one device to the CPU, as one tensor, since each copy would wait for the device.

    Args:
        tensors: of any shapes and dtypes.

    Returns:
        The tensors on the CPU, in their order; those of the CPU themselves.
    """
    if not tensors or tensors[0].device.type == "cpu":
        return list(tensors)
    parts = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    copied = torch.cat(parts).cpu().split([len(part) for part in parts])
    # a clone begins at an address that every dtype accepts
    return [part.clone().view(like.dtype).view(like.shape) for part, like in zip(copied, tensors, strict=True)]


@dataclass(frozen=True)
class EncoderOut:
    """The output of an encoder, which its decoder reads; the first dimension of every tensor is the row.

    A model that needs further tensors adds fields in a subclass; the methods below apply to all of them.

    Attributes:
        encoder_out: ``(N, S, C)`` features of each source position.
        encoder_padding_mask: ``(N, S)`` bool, true where a position is padding; ``None`` if there is no padding.
    """

    encoder_out: Tensor
    encoder_padding_mask: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.encoder_out.size(0)

    def index_select(self, new_order: Tensor) -> Self:
        """Select rows.

        Args:
            new_order: ``(rows,)`` int64 indices of rows, in any order and number.

        Returns:
            A new value with these rows.
        """
        return self.map(lambda tensor: tensor.index_select(0, new_order))

    def merge(self, other: Self) -> Self:
        """Append the rows of another value.

        Tensors whose second dimensions differ are padded to the larger one: masks with true, others with zeros.

        Args:
            other: a value of the same class.

        Returns:
            A new value with the rows of both.
        """
        widths = self.encoder_out.size(1), other.encoder_out.size(1)

        def merge_tensors(one: Tensor, two: Tensor) -> Tensor:
            if one.dim() > 1 and (longest := max(one.size(1), two.size(1))) > min(one.size(1), two.size(1)):
                zeros, fill = [0] * (2 * one.dim() - 3), float(one.dtype == torch.bool)
                one, two = (F.pad(each, [*zeros, longest - each.size(1)], value=fill) for each in (one, two))
            return torch.cat([one, two])

        first, second = self, other
        if widths[0] != widths[1] or (self.encoder_padding_mask is None) != (other.encoder_padding_mask is None):
            first, second = (
                replace(one, encoder_padding_mask=_padding_mask_of(one, max(widths))) for one in (self, other)
            )
        tensors = iter(tensors_in(second))
        return first.map(lambda tensor: merge_tensors(tensor, next(tensors)))

    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """Apply ``fn`` to every tensor and return a new value."""
        mapped: Self = map_tensors(self, fn)
        return mapped


def _padding_mask_of(value: EncoderOut, width: int) -> Tensor:
    """The padding mask of a source that is padded to ``width``: ``(N, width)``."""
    rows, source = value.encoder_out.shape[:2]
    mask = torch.ones(rows, width, dtype=torch.bool, device=value.encoder_out.device)
    mask[:, :source] = False if value.encoder_padding_mask is None else value.encoder_padding_mask
    return mask


class DecoderOut(NamedTuple):
    """The output of a decoder.

    Attributes:
        logits: ``(N, T, V)`` unnormalized scores of the next token at each of the computed positions.
        attention: ``(N, T, S)`` weights over the source that sum to one; ``None`` if not requested.
    """

    logits: Tensor
    attention: Tensor | None = None


@dataclass(frozen=True)
class Source:
    """The encoder's input in the layout of one model.

    Attributes:
        src_tokens: ``(N, S)`` int64 ids, padded on the side that the model requires.
        src_lengths: ``(N,)`` int64 lengths without padding, end-of-sentence included.
        encoder_out: what an encoder returned for these sentences, or an edited value: the encoder is then not run.
            ``None`` if the encoder reads ``src_tokens``.
        inputs: by name ``(N, ...)`` the further columns of the sentences, for encoders that declare them and for
            criteria; see ``Example.columns``.
    """

    src_tokens: Tensor
    src_lengths: Tensor
    encoder_out: EncoderOut | None = None
    inputs: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of_encoding(cls, encoder_out: EncoderOut, eos: int) -> Self:
        """The source of sentences of which only the encoder's output is known.

        Args:
            encoder_out: the output, ``(N, S, C)``.
            eos: id of end-of-sentence, which stands for all source tokens where a component reads them.

        Raises:
            ValueError: ``encoder_out`` is not a value of ``EncoderOut``.
        """
        if not isinstance(encoder_out, EncoderOut):
            raise ValueError(
                f"the encoder's output must be an EncoderOut, not a {type(encoder_out).__name__}; write "
                "EncoderOut(encoder_out, encoder_padding_mask)"
            )
        features, mask = encoder_out.encoder_out, encoder_out.encoder_padding_mask
        src_tokens = torch.full(features.shape[:2], eos, device=features.device)
        lengths = torch.full_like(src_tokens[:, 0], features.size(1)) if mask is None else (~mask).sum(1)
        return cls(src_tokens, lengths, encoder_out)

    def padding(self, left: bool) -> Tensor | None:
        """The padding mask, ``(N, S)`` bool; ``None`` if there is no padding.

        Args:
            left: whether the padding is on the left.
        """
        width = self.src_tokens.size(1)
        if bool((self.src_lengths == width).all()):
            return None
        columns = torch.arange(width, device=self.src_tokens.device)
        lengths = self.src_lengths.unsqueeze(1)
        return columns < width - lengths if left else columns >= lengths


@dataclass(frozen=True)
class Segments:
    """The example of each token, if several examples share a row.

    Attributes:
        source: ``(N, S)`` int64: 1, 2, ... from left to right, and 0 at padding.
        target: ``(N, T)`` int64, likewise; but padding after a row's last example has the number of that example.
    """

    source: Tensor
    target: Tensor


@dataclass(frozen=True)
class Batch:
    """A collated batch of sentences.

    Attributes:
        ids: ``(N,)`` int64 index of each sentence in its dataset.
        source: the encoder's input.
        prev_output_tokens: ``(N, T)`` int64 decoder input (the target shifted right, after the model's start token);
            ``None`` if there is no target.
        target: ``(N, T)`` int64 ids to predict, end-of-sentence included, padded on the right;
            ``None`` if there is no target.
        ntokens: target tokens in the batch that are not padding (source tokens if there is no target).
        member_sources: one source for each member of an ensemble, if members encode the source differently.
        segments: the example of each token, if several examples share a row; ``ids`` then has all examples.
        texts: the text of each source line; ``None`` if sentences were not given as text.
        target_lengths: ``(N,)`` int64 tokens of each target, if padding is the same token as end-of-sentence; ``None``
            if all targets end at their first padding token.
        first_tokens: ``(N,)`` int64, the first token of each output, instead of the one that ``ForceFirst`` forces.
        start_tokens: ``(N,)`` int64, the start token of each sentence, instead of the model's start token.
    """

    ids: Tensor
    source: Source
    prev_output_tokens: Tensor | None = None
    target: Tensor | None = None
    ntokens: int = 0
    member_sources: list[Source] | None = None
    segments: Segments | None = None
    texts: Sequence[str] | None = None
    target_lengths: Tensor | None = None
    first_tokens: Tensor | None = None
    start_tokens: Tensor | None = None

    @property
    def num_sentences(self) -> int:
        """The number of sentences."""
        return self.source.src_tokens.size(0)

    def to(self, device: torch.device | str) -> Batch:
        """Move every tensor to ``device`` and return a new batch; to a CUDA device without waiting for the copies."""
        pins = torch.device(device).type == "cuda" and self.ids.device.type == "cpu"
        # only copies from pinned memory are asynchronous
        moved: Batch = map_tensors(
            self, lambda tensor: (tensor.pin_memory() if pins else tensor).to(device, non_blocking=pins)
        )
        return moved


@dataclass(frozen=True)
class Hypothesis:
    """One finished output of a search.

    Attributes:
        tokens: ``(T,)`` int64 ids, end-of-sentence included.
        score: the score that ranks hypotheses: the sum of ``positional_scores`` divided by the length penalty.
        positional_scores: ``(T,)`` float32, each token's log-probability in nats, penalties and temperature included.
        attention: ``(T, S)`` weights over the source; ``None`` if not requested.
        alignment: ``(T,)`` int64 source position with the largest attention weight; ``None`` if not requested.
        timed_out: whether ``generation.max_time`` ended the search of this sentence.
        forced_end: whether the output did not choose to end: its last token is no end token, or the end token that is
            forced at the maximum length.
        top_tokens: ``(T, N)`` int64, the ``generation.top_tokens`` most probable tokens in place of each token, best
            first; ``None`` if not requested.
        top_scores: ``(T, N)`` their log-probabilities, with penalties and temperature like ``positional_scores``;
            ``-inf`` for tokens that are impossible or do not exist.
        member_tokens: for each member ``(T,)`` int64 its tokens, if the members have different target vocabularies;
            ``tokens`` and ``positional_scores`` are then those of the first member.
        member_scores: for each member ``(T,)`` the log-probabilities of its tokens, in nats, in this case.
        fields: by name ``(T, ...)`` the components' own values for each token, see ``Component.token_fields``.
    """

    tokens: Tensor
    score: float
    positional_scores: Tensor
    attention: Tensor | None = None
    alignment: Tensor | None = None
    timed_out: bool = False
    forced_end: bool = False
    top_tokens: Tensor | None = None
    top_scores: Tensor | None = None
    member_tokens: list[Tensor] | None = None
    member_scores: list[Tensor] | None = None
    fields: dict[str, Tensor] = field(default_factory=dict)
