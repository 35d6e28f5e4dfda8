"""Masks of self-attention.

Several examples may stand in one row (segments); they must not attend to each other. The segment of a token is the
number of its example in the row: 1, 2, ... from left to right, and 0 at padding::

    tokens      a b . c d e . _        segments    1 1 1 2 2 2 2 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from seqgen.core.incremental_state import IncrementalState, StateDict
from seqgen.core.structures import Segments
from seqgen.system.switches import INPUT_CHOICES


def segment_mask(queries: Tensor, keys: Tensor, causal: bool = False) -> Tensor:
    """The mask with which each query attends only to keys of its own example.

    Args:
        queries: ``(N, Q)`` int64 segments.
        keys: ``(N, K)`` int64 segments.
        causal: whether a query attends only to keys up to its position.

    Returns:
        ``(N, 1, Q, K)`` bool, true where attention is allowed.
    """
    allowed = queries.unsqueeze(2) == keys.unsqueeze(1)
    if causal:
        allowed = allowed.tril()
    return allowed.unsqueeze(1)


def segment_positions(segments: Tensor) -> Tensor:
    """The position of each token within its example.

    Args:
        segments: ``(N, L)`` int64.

    Returns:
        ``(N, L)`` int64: ``1 1 1 2 2 2 2 0`` gives ``0 1 2 0 1 2 3 0``.
    """
    positions = torch.arange(segments.size(1), device=segments.device).expand_as(segments)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    first = torch.where(begins, positions, 0).cummax(1).values
    return positions - first


@dataclass
class QueryPositions:
    """The positions that a model computes in one pass, from which the mask of self-attention is made.

    A new mask is one method, for example attention to the last four positions::

        class LocalDecoder(TransformerDecoder):
            def self_attention_mask(self, queries, layer):
                return queries.once("local", lambda: queries.restrict(queries.distances < 4))

    Attributes:
        seen: number of positions in the state before this pass.
        new: number of positions that are computed.
        device: where masks are needed.
        causal: whether a position attends only to those up to itself.
        start_offsets: ``(N,)`` int64, the first position of each row, which does not attend to positions before it;
            ``None`` if all are 0.
        segments: ``(N, new)`` int64, the example of each position, if several examples share a row.
        padding_mask: ``(N, new)`` bool, true at padding; ``None`` if there is no padding.
    """

    seen: int
    new: int
    device: torch.device
    causal: bool = True
    start_offsets: Tensor | None = None
    segments: Tensor | None = None
    padding_mask: Tensor | None = None

    @classmethod
    def of_source(cls, src_tokens: Tensor, segments: Segments | None, padding_mask: Tensor | None = None) -> Self:
        """The positions of an encoder's pass.

        Args:
            src_tokens: ``(N, S)`` int64.
            segments: the example of each token, if several examples share a row.
            padding_mask: ``(N, S)`` bool, true at padding; ``None`` if the mask need not hide padding.
        """
        examples = None if segments is None else segments.source
        return cls(0, src_tokens.size(1), src_tokens.device, False, segments=examples, padding_mask=padding_mask)

    @classmethod
    def of_target(
        cls, tokens: Tensor, seen: int, incremental_state: StateDict | None, segments: Segments | None
    ) -> Self:
        """The positions of a decoder's pass.

        Args:
            tokens: ``(N, new)`` int64 new tokens.
            seen: number of positions in the state.
            incremental_state: the decoding state.
            segments: the example of each token, if several examples share a row.
        """
        start_offsets = start_offsets_of_rows(incremental_state, tokens.size(0))
        examples = None if segments is None else segments.target
        return cls(seen, tokens.size(1), tokens.device, True, start_offsets, examples)

    @cached_property
    def allowed(self) -> Tensor | None:
        """Bool, true where attention is allowed, broadcastable to ``(N, H, new, K)``; ``None`` if everywhere.

        The mask includes causality, start offsets, segments and padding.
        """
        if self.segments is not None:
            return segment_mask(self.segments, self.segments, causal=self.causal)
        if self.causal:
            return step_mask(self.seen, self.new, self.start_offsets, self.device)
        return None if self.padding_mask is None else ~self.padding_mask[:, None, None, :]

    @cached_property
    def distances(self) -> Tensor:
        """``(new, K)`` int64, position of each query minus position of each key."""
        keys = torch.arange(self.seen + self.new, device=self.device)
        return keys[self.seen :].unsqueeze(1) - keys

    @cached_property
    def positions(self) -> Tensor:
        """``(1 or N, new)`` int64, the position of each query in its sentence, from 0; padding is not counted."""
        if self.segments is not None:
            return segment_positions(self.segments)
        if self.padding_mask is not None:
            return ((~self.padding_mask).cumsum(1) - 1).clamp(min=0)
        steps = torch.arange(self.seen, self.seen + self.new, device=self.device).unsqueeze(0)
        return steps if self.start_offsets is None else (steps - self.start_offsets.unsqueeze(1)).clamp(min=0)

    @property
    def is_plain_causal(self) -> bool:
        """True if the mask is only causal and nothing was seen before: attention kernels then need no mask tensor."""
        return self.causal and self.seen == 0 and self.start_offsets is None and self.segments is None

    def restrict(self, mask: Tensor) -> Tensor:
        """Combine a mask with ``allowed``.

        Args:
            mask: bool, true where attention is allowed, or a float that is added to the scores; broadcastable to
                ``(N, H, new, K)``.

        Returns:
            A mask of the same kind that also hides what ``allowed`` hides.
        """
        if self.allowed is None:
            return mask
        if mask.dtype == torch.bool:
            return mask & self.allowed
        # Half of the lowest number, so that adding it to a score stays finite.
        return mask.masked_fill(~self.allowed, torch.finfo(mask.dtype).min / 2)

    def once(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """Build a mask once for successive layers; layers with the same mask tensor also share work on it.

        Args:
            key: identifies the mask; with another object than in the last call, the mask is built again.
            make: builds the mask.

        Returns:
            The mask.
        """
        kept: tuple[object, Tensor] | None = self.__dict__.get("_kept")
        if kept is None or kept[0] is not key:
            kept = self.__dict__["_kept"] = key, make()
        return kept[1]


def start_offsets_of_rows(incremental_state: StateDict | None, rows: int) -> Tensor | None:
    """The start offset of each row: the step at which its sentence entered the batch.

    Args:
        incremental_state: the decoding state.
        rows: number of rows of the batch, a multiple of the number of sentences.

    Returns:
        ``(rows,)`` int64; ``None`` if all are 0, as for a plain dict.
    """
    if not isinstance(incremental_state, IncrementalState) or not incremental_state.has_start_offsets:
        return None
    start_offsets = incremental_state.start_offsets
    return start_offsets.repeat_interleave(rows // start_offsets.numel())


def step_mask(seen: int, new: int, start_offsets: Tensor | None, device: torch.device) -> Tensor | None:
    """The causal mask of new positions.

    With 2 positions seen and 2 new ones, the masks of the new ones are ``1 1 1 0`` and ``1 1 1 1``; in a row with start
    offset 1 they are ``0 1 1 0`` and ``0 1 1 1``.

    Args:
        seen: number of positions seen before.
        new: number of new positions.
        start_offsets: ``(N,)`` int64 start offset of each row; ``None`` if all are 0.
        device: where the mask is needed.

    Returns:
        Bool, true where attention is allowed: ``(new, seen + new)``, or ``(N, 1, new, seen + new)`` with
        ``start_offsets``; ``None`` if everything is allowed.
    """
    if start_offsets is None and new == 1:
        return None
    keys = torch.arange(seen + new, device=device)
    mask = keys <= torch.arange(seen, seen + new, device=device).unsqueeze(1)
    if start_offsets is None:
        return mask
    return mask & (keys >= start_offsets.unsqueeze(1)).view(-1, 1, 1, seen + new)


def padding_mask_of(src_tokens: Tensor, padding_idx: int | None) -> Tensor | None:
    """The padding mask of a source.

    Args:
        src_tokens: ``(N, S)`` int64.
        padding_idx: id of padding.

    Returns:
        ``(N, S)`` bool, true at padding; ``None`` if there is no padding.
    """
    mask = src_tokens.eq(padding_idx) if padding_idx is not None else None
    if mask is None or not INPUT_CHOICES.is_on():
        return mask
    return mask if bool(mask.any()) else None
