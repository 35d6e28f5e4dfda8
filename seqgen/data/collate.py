"""Collation: examples of different lengths are padded and combined into a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seqgen.structures import Batch, Source


class Example(NamedTuple):
    """A sentence and its translation, if it has one.

    Attributes:
        id: index in the dataset, from 0.
        source: ``(S,)`` int64 ids, end-of-sentence included.
        target: ``(T,)`` int64 ids, end-of-sentence included, or ``None``.
    """

    id: int
    source: Tensor
    target: Tensor | None = None


def pad_rows(rows: Sequence[Tensor], pad: int, left: bool = False) -> Tensor:
    """Put sequences into the rows of one tensor, padded to the length of the longest.

    Args:
        rows: ``(length,)`` int64 each.
        pad: id of padding.
        left: whether shorter rows are padded on the left.

    Returns:
        ``(N, longest)`` int64.
    """
    side = "left" if left else "right"
    padded: Tensor = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=pad, padding_side=side)
    return padded.long()


def collate(
    examples: Sequence[tuple[int, Tensor, Tensor | None]],
    *,
    source_pad: int,
    target_pad: int,
    start_token: int,
    left_pad_source: bool = False,
) -> Batch:
    """Combine examples into a batch.

    With ``start_token`` s, padding p and the targets ``[a b e]`` and ``[c e]`` (e: end-of-sentence)::

        target              a b e      prev_output_tokens  s a b
                            c e p                          s c p

    Args:
        examples: the id, source and target of each, 1-D int64; either all have a target or none has.
        source_pad: id of padding in the source vocabulary.
        target_pad: id of padding in the target vocabulary.
        start_token: id that ``prev_output_tokens`` begins with.
        left_pad_source: whether sources are padded on the left.

    Returns:
        The batch: ``src_tokens`` ``(N, S)``, ``target`` and ``prev_output_tokens`` ``(N, T)``, where S and T are the
        lengths of the longest source and the longest target.

    Raises:
        ValueError: there is no example, or only some have a target.
    """
    if not examples:
        raise ValueError("a batch needs at least one example")
    ids, sources, targets = zip(*examples, strict=True)
    source_lengths = torch.tensor([len(row) for row in sources])
    source = Source(pad_rows(sources, source_pad, left_pad_source), source_lengths)
    if all(row is None for row in targets):
        return Batch(torch.tensor(ids), source, ntokens=int(source_lengths.sum()))
    if any(row is None for row in targets):
        raise ValueError("either all examples of a batch have a target, or none has")
    shifted = pad_rows([row[:-1] for row in targets], target_pad)
    return Batch(
        ids=torch.tensor(ids),
        source=source,
        prev_output_tokens=torch.cat([shifted.new_full((len(targets), 1), start_token), shifted], 1),
        target=pad_rows(targets, target_pad),
        ntokens=sum(len(row) for row in targets),
    )
