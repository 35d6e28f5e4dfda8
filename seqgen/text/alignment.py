"""Which source position each token of an output attends to most."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seqgen.structures import Hypothesis


def attend_to_source(hypothesis: Hypothesis, width: int, length: int, left_pad: bool) -> Hypothesis:
    """Cut attention to the source itself, and align with it.

    A batch pads the source; of a width of 5 and a length of 3, columns 0 to 2 are the source, or 2 to 4 where it is
    padded on the left. End-of-sentence, its last position, gets no alignment: it is no word.

    Args:
        hypothesis: a hypothesis of this source.
        width: columns of the batch's source.
        length: those of this source, end-of-sentence included.
        left_pad: whether padding stands on the left.

    Returns:
        The hypothesis with its new attention and alignment; with neither where its attention is not over this source
        but over another member's.
    """
    attention = hypothesis.attention
    if attention is None or attention.size(1) != width:
        return replace(hypothesis, attention=None, alignment=None)
    attention = attention[:, width - length :] if left_pad else attention[:, :length]
    return replace(hypothesis, attention=attention, alignment=attention[:, : max(1, length - 1)].argmax(-1))


def alignment_pairs(tokens: Tensor, alignment: Tensor, eos: int) -> list[tuple[int, int]]:
    """Source and target positions of the words of an output, as fairseq's ``--print-alignment`` has them.

    Args:
        tokens: ``(T,)`` int64.
        alignment: ``(T,)`` int64 source positions.
        eos: id of end-of-sentence, which is no word.
    """
    words = torch.nonzero(tokens != eos).squeeze(1).tolist()
    return [(int(alignment[place]), number) for number, place in enumerate(words)]
