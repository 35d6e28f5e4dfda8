"""Concatenation of the rows of several batches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.modules.kv_cache.protocol import KeysAndValues


def join_rows(parts: list[KeysAndValues], left: bool) -> KeysAndValues:
    """Concatenate the rows of several batches, with shorter rows padded to the longest.

    The start offsets of rows hide positions added on the left; the padding mask hides positions added on the right.

    Args:
        parts: keys, values and padding of each batch.
        left: whether shorter rows are padded on the left rather than on the right.

    Returns:
        Keys, values and padding of all rows, those of the first batch first.
    """
    length = max(part.keys.size(2) for part in parts)
    mask = _join_padding_masks(parts, length, left)
    return KeysAndValues(
        _cat([part.keys for part in parts], length, left), _cat([part.values for part in parts], length, left), mask
    )


def _cat(parts: list[Tensor], length: int, left: bool) -> Tensor:
    """Concatenate rows of several ``(N, H, K, D)``, padded with zeros to ``length`` positions."""
    missing = [length - part.size(2) for part in parts]
    return torch.cat(
        [F.pad(part, (0, 0, n, 0) if left else (0, 0, 0, n)) for part, n in zip(parts, missing, strict=True)]
    )


def _join_padding_masks(parts: list[KeysAndValues], length: int, left: bool) -> Tensor | None:
    if all(part.padding_mask is None and (left or part.keys.size(2) == length) for part in parts):
        return None
    masks = []
    for part in parts:
        rows, _, width, _ = part.keys.shape
        mask = part.keys.new_zeros(rows, width, dtype=torch.bool) if part.padding_mask is None else part.padding_mask
        masks.append(F.pad(mask, (length - width, 0)) if left else F.pad(mask, (0, length - width), value=True))
    return torch.cat(masks)
