"""Alignment: the source position with the largest attention weight for each token of an output."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seqgen.structures import Hypothesis


def attend_to_source(hypothesis: Hypothesis, width: int, length: int, left_pad: bool) -> Hypothesis:
    """Remove the columns of padding from the attention, and compute the alignment.

    With a width of 5 and a length of 3, columns 0 to 2 are the source, or columns 2 to 4 if padding is on the left.
    No token is aligned with end-of-sentence, the last source position, because it is not a word.

    Args:
        hypothesis: a hypothesis of this source.
        width: number of columns of the batch's source.
        length: number of source tokens of this sentence, end-of-sentence included.
        left_pad: whether padding is on the left.

    Returns:
        The hypothesis with its attention ``(T, length)`` and alignment ``(T,)``; without both if its attention has
        another width, because it is over the source of another member.
    """
    attention = hypothesis.attention
    if attention is None or attention.size(1) != width:
        return replace(hypothesis, attention=None, alignment=None)
    attention = attention[:, width - length :] if left_pad else attention[:, :length]
    return replace(hypothesis, attention=attention, alignment=attention[:, : max(1, length - 1)].argmax(-1))


def alignment_pairs(tokens: Tensor, alignment: Tensor, eos: int) -> list[tuple[int, int]]:
    """Pairs of source and target positions of the words of an output, as fairseq's ``--print-alignment`` prints them.

    Args:
        tokens: ``(T,)`` int64.
        alignment: ``(T,)`` int64 source positions.
        eos: id of end-of-sentence, which is not a word.

    Returns:
        A pair of a source position and the number of the word for each word, in the order of the output.
    """
    words = torch.nonzero(tokens != eos).squeeze(1).tolist()
    return [(int(alignment[position]), number) for number, position in enumerate(words)]
