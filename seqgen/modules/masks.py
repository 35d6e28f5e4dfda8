"""Who may attend to whom in a decoder."""

from __future__ import annotations

import torch
from torch import Tensor

from seqgen.incremental_state import IncrementalState, StateDict


def starts_of_rows(incremental_state: StateDict | None, rows: int) -> Tensor | None:
    """The step at which each row's sentence entered the batch.

    Args:
        incremental_state: the decoding state.
        rows: rows of the batch, a multiple of the sentences.

    Returns:
        ``(rows,)`` int64; ``None`` where all sentences entered at step 0, which a plain dict implies.
    """
    if not isinstance(incremental_state, IncrementalState) or not incremental_state.has_late_starts:
        return None
    starts = incremental_state.starts
    if rows % starts.numel():
        raise ValueError(f"{rows} rows do not belong to {starts.numel()} sentences of equally many rows")
    return starts.repeat_interleave(rows // starts.numel())


def step_mask(seen: int, new: int, starts: Tensor | None, device: torch.device) -> Tensor | None:
    """Which positions each new position may attend to.

    With 2 positions seen and 2 new ones, the masks of the new ones are ``1 1 1 0`` and ``1 1 1 1``; in a row that
    started at step 1 they are ``0 1 1 0`` and ``0 1 1 1``.

    Args:
        seen: positions seen before.
        new: positions now computed.
        starts: ``(N,)`` int64, the first position of each row; ``None`` where that is 0 everywhere.
        device: where the mask is needed.

    Returns:
        Bool, true where attention is allowed: ``(new, seen + new)``, or ``(N, 1, new, seen + new)`` with ``starts``;
        ``None`` where everything is allowed.
    """
    if starts is None and new == 1:
        return None
    keys = torch.arange(seen + new, device=device)
    mask = keys <= torch.arange(seen, seen + new, device=device).unsqueeze(1)
    if starts is None:
        return mask
    return mask & (keys >= starts.unsqueeze(1)).view(-1, 1, 1, seen + new)


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
