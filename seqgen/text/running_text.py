"""Scores of running text under language models: each block of the text is scored after the tokens before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seqgen.data.pair_dataset import Example
from seqgen.structures import Hypothesis


class Block(NamedTuple):
    """Consecutive tokens of a text.

    Attributes:
        first: index of the first token of the context.
        start: index of the first token that is scored.
        stop: index after the last token.
    """

    first: int
    start: int
    stop: int


def blocks(length: int, tokens_per_sample: int, context_window: int) -> list[Block]:
    """Cut a text into blocks, as fairseq's ``eval_lm`` does.

    A text of 7 tokens with ``tokens_per_sample=5`` and ``context_window=2``: the tokens 0 to 2 are scored; 3 to 5 are
    scored after 1 and 2; 6 is scored after 4 and 5.

    Args:
        length: tokens of the text.
        tokens_per_sample: most tokens of a block, context included.
        context_window: most tokens of the context, below ``tokens_per_sample``.

    Returns:
        The blocks, in order; each token is scored in one of them.
    """
    step = tokens_per_sample - context_window
    starts = range(0, length, step)
    return [Block(max(0, start - context_window), start, min(start + step, length)) for start in starts]


def score_running_text(
    lines: Sequence[Tensor],
    first: int,
    cut: Sequence[Block],
    rows: int,
    score: Callable[[list[Example]], Iterator[Tensor]],
) -> Iterator[Tensor]:
    """Score the tokens of a text block by block.

    The source of a block is the token before its context, which the model sees too.

    Args:
        lines: ``(T,)`` int64 tokens of each line, end-of-sentence included.
        first: the token before the text, such as end-of-sentence.
        cut: the blocks of the text.
        rows: blocks that are scored at once.
        score: gives the log-probabilities ``(T,)`` of the targets of some examples.

    Yields:
        ``(T,)`` log-probabilities of the tokens of each line, in nats.
    """
    text = torch.cat([torch.tensor([first]), *lines])  # token i of the text is in column i + 1, after the one before it
    scores = torch.zeros(len(text) - 1)
    for begin in range(0, len(cut), rows):
        some = cut[begin : begin + rows]
        examples = [
            Example(begin + i, text[block.first : block.first + 1], text[block.first + 1 : block.stop + 1])
            for i, block in enumerate(some)
        ]
        for block, found in zip(some, score(examples), strict=True):
            scores[block.start : block.stop] = found[block.start - block.first :]
    yield from scores.split([len(line) for line in lines])


def line_hypothesis(tokens: Tensor, scores: Tensor, normalize: bool) -> Hypothesis:
    """A line as a hypothesis.

    Args:
        tokens: ``(T,)`` int64, end-of-sentence included.
        scores: ``(T,)`` log-probabilities in nats.
        normalize: whether its score is the mean rather than the sum.
    """
    return Hypothesis(tokens, float(scores.sum()) / (len(tokens) if normalize else 1), scores)
