"""Which positions self-attention may attend to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from seqgen.incremental_state import IncrementalState, StateDict
from seqgen.modules.segments import segment_mask
from seqgen.renamed import former_names, keep_former_members
from seqgen.structures import Segments

globals()["__getattr__"] = former_names(__name__)  # not a function, so that type checkers still know each name


@keep_former_members
@dataclass
class QueryPositions:
    """The positions that a model computes in one pass, for the mask of self-attention.

    A new mask is one method, for instance attention to the last four positions::

        class LocalDecoder(TransformerDecoder):
            def self_attention_mask(self, queries, layer):
                return queries.once("local", lambda: queries.restrict(queries.distances < 4))

    Attributes:
        seen: positions in the state before this pass.
        new: positions that are computed.
        device: where masks are needed.
        causal: whether a position sees only those up to itself.
        start_offsets: ``(N,)`` int64, the first position of each row; it does not attend to those before. ``None``
            where all are 0.
        segments: ``(N, new)`` int64, in rows that hold several examples the example of each position.
        padding_mask: ``(N, new)`` bool, true at padding; ``None`` where there is none.
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
        """Those of an encoder's pass over ``src_tokens`` ``(N, S)``."""
        examples = None if segments is None else segments.source
        return cls(0, src_tokens.size(1), src_tokens.device, False, segments=examples, padding_mask=padding_mask)

    @classmethod
    def of_target(
        cls, tokens: Tensor, seen: int, incremental_state: StateDict | None, segments: Segments | None
    ) -> Self:
        """Those of a decoder's pass over the new tokens ``(N, new)`` behind ``seen`` others."""
        start_offsets = start_offsets_of_rows(incremental_state, tokens.size(0))
        return cls(
            seen, tokens.size(1), tokens.device, True, start_offsets, None if segments is None else segments.target
        )

    @cached_property
    def allowed(self) -> Tensor | None:
        """Bool, true where attention is allowed, broadcastable to ``(N, H, new, K)``; ``None`` where it is everywhere.

        Causality, start offsets, segments and padding are in it.
        """
        if self.segments is not None:
            return segment_mask(self.segments, self.segments, causal=self.causal)
        if self.causal:
            return step_mask(self.seen, self.new, self.start_offsets, self.device)
        return None if self.padding_mask is None else ~self.padding_mask[:, None, None, :]

    @cached_property
    def distances(self) -> Tensor:
        """``(new, K)`` int64, how far each position that may be attended to lies before the one that attends."""
        keys = torch.arange(self.seen + self.new, device=self.device)
        return keys[self.seen :].unsqueeze(1) - keys

    @property
    def is_plain_causal(self) -> bool:
        """Whether the mask is that of a causal pass over whole rows, which attention kernels know without a tensor."""
        return self.causal and self.seen == 0 and self.start_offsets is None and self.segments is None

    def restrict(self, mask: Tensor) -> Tensor:
        """Hide what is not allowed from a mask.

        Args:
            mask: bool, true where attention is allowed, or a float that is added to the scores; broadcastable to
                ``(N, H, new, K)``.
        """
        if self.allowed is None:
            return mask
        if mask.dtype == torch.bool:
            return mask & self.allowed
        # Half of the lowest number, so that sums stay finite.
        return mask.masked_fill(~self.allowed, torch.finfo(mask.dtype).min / 2)

    def once(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """Make a mask that successive layers share; layers that use the same tensor also share work on it.

        Args:
            key: the mask is made anew when the key is another object than in the last call.
            make: makes the mask.
        """
        kept: tuple[object, Tensor] | None = self.__dict__.get("_kept")
        if kept is None or kept[0] is not key:
            kept = self.__dict__["_kept"] = key, make()
        return kept[1]


def start_offsets_of_rows(incremental_state: StateDict | None, rows: int) -> Tensor | None:
    """The start offset of each row: the step at which its sentence entered the batch.

    Args:
        incremental_state: the decoding state.
        rows: rows of the batch, a multiple of the sentences.

    Returns:
        ``(rows,)`` int64; ``None`` where all sentences entered at step 0, which a plain dict implies.
    """
    if not isinstance(incremental_state, IncrementalState) or not incremental_state.has_start_offsets:
        return None
    start_offsets = incremental_state.start_offsets
    if rows % start_offsets.numel():
        raise ValueError(f"{rows} rows do not belong to {start_offsets.numel()} sentences of equally many rows")
    return start_offsets.repeat_interleave(rows // start_offsets.numel())


def step_mask(seen: int, new: int, start_offsets: Tensor | None, device: torch.device) -> Tensor | None:
    """Which positions each new position may attend to.

    With 2 positions seen and 2 new ones, the masks of the new ones are ``1 1 1 0`` and ``1 1 1 1``; in a row that
    started at step 1 they are ``0 1 1 0`` and ``0 1 1 1``.

    Args:
        seen: positions seen before.
        new: positions now computed.
        start_offsets: ``(N,)`` int64 start offset of each row; ``None`` where that is 0 everywhere.
        device: where the mask is needed.

    Returns:
        Bool, true where attention is allowed: ``(new, seen + new)``, or ``(N, 1, new, seen + new)`` with
        ``start_offsets``; ``None`` where everything is allowed.
    """
    if start_offsets is None and new == 1:
        return None
    keys = torch.arange(seen + new, device=device)
    mask = keys <= torch.arange(seen, seen + new, device=device).unsqueeze(1)
    if start_offsets is None:
        return mask
    return mask & (keys >= start_offsets.unsqueeze(1)).view(-1, 1, 1, seen + new)


def padding_mask_of(src_tokens: Tensor, padding_idx: int | None) -> Tensor | None:
    """Where a source is padding.

    Args:
        src_tokens: ``(N, S)`` int64.
        padding_idx: id of padding.

    Returns:
        ``(N, S)`` bool, or ``None`` where no row has any.
    """
    mask = src_tokens.eq(padding_idx) if padding_idx is not None else None
    return mask if mask is not None and bool(mask.any()) else None
