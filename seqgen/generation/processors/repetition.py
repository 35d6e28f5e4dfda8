"""Processors that depend on the tokens generated so far, or on those of the source."""

from __future__ import annotations

import torch
from torch import Tensor

from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor


class NoRepeatNgram(LogitsProcessor):
    """Forbids tokens that would complete an n-gram that already occurs in the hypothesis.

    Args:
        size: n.
    """

    shift_invariant = True

    def __init__(self, size: int):
        self.size = size

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        generated = context.generated
        return forbid_completions(lprobs, generated, generated, self.size, context.generated_padding)


class EncoderNoRepeatNgram(NoRepeatNgram):
    """Forbids tokens that would complete an n-gram of the source.

    Args:
        size: n.
    """

    shift_invariant = True

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.src_tokens is None:
            return lprobs
        return forbid_completions(lprobs, context.src_tokens, context.generated, self.size, context.src_padding)


class RepetitionPenalty(LogitsProcessor):
    """Lowers the scores of tokens that were generated before (Keskar et al. 2019, section 4.1).

    A negative score is multiplied by the penalty and a positive one divided by it, so that both become smaller.

    Args:
        penalty: values above 1 avoid repetitions, values below 1 encourage them.
    """

    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return _shrink(lprobs, context.generated, self.penalty, context.generated_padding)


class EncoderRepetitionPenalty(RepetitionPenalty):
    """Raises the scores of the source's tokens: ``RepetitionPenalty`` with the inverse of the penalty.

    Padding of the source is ignored, so that an output does not depend on the other sentences of the batch.

    Args:
        penalty: values above 1 prefer tokens of the source, values below 1 avoid them.
    """

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.src_tokens is None:
            return lprobs
        return _shrink(lprobs, context.src_tokens, 1 / self.penalty, context.src_padding)


def forbid_completions(
    lprobs: Tensor, text: Tensor, generated: Tensor, size: int, padding: Tensor | None = None
) -> Tensor:
    """Forbid each token that, appended to the newest ``size - 1`` generated tokens, gives an n-gram of a text.

    Args:
        lprobs: ``(rows, V)``, changed in place.
        text: ``(rows, L)`` int64, the text whose n-grams are forbidden.
        generated: ``(rows, K)`` int64.
        size: n.
        padding: ``(rows, L)`` bool, true where the text is padding; n-grams with padding are ignored.

    Returns:
        ``lprobs``.
    """
    if text.size(1) < size or generated.size(1) < size - 1:
        return lprobs
    # text a b c a b, size 3: the windows are abc, bca, cab; abc begins with the last two tokens, so c is forbidden
    windows = text.unfold(1, size, 1)  # (rows, L - size + 1, size)
    last = generated[:, generated.size(1) - size + 1 :].unsqueeze(1)  # (rows, 1, size - 1)
    repeated = (windows[..., :-1] == last).all(-1)
    if padding is not None:
        repeated &= ~padding.unfold(1, size, 1).any(-1)
    # amin with -inf (forbidden) or inf (allowed): a token may be the last one of several windows
    limits = torch.where(repeated, -torch.inf, torch.inf).to(lprobs.dtype)
    return lprobs.scatter_reduce_(1, windows[..., -1], limits, "amin")


def _shrink(scores: Tensor, tokens: Tensor, penalty: float, padding: Tensor | None = None) -> Tensor:
    """Lower the scores of some tokens of each row; a token that occurs twice is lowered once.

    Args:
        scores: ``(rows, V)``.
        tokens: ``(rows, L)`` int64.
        penalty: see ``RepetitionPenalty``.
        padding: ``(rows, L)`` bool, true at tokens that do not count; ``None`` if all count.
    """
    if padding is None:
        return scores.scatter(1, tokens, _lowered(scores.gather(1, tokens), penalty))
    size = scores.size(1)
    columns = tokens.masked_fill(padding, size)  # padding falls into a column that is dropped
    occurs = torch.zeros_like(scores[:, :1], dtype=torch.bool).repeat(1, size + 1).scatter_(1, columns, True)
    return torch.where(occurs[:, :size], _lowered(scores, penalty), scores)


def _lowered(scores: Tensor, penalty: float) -> Tensor:
    return (scores * penalty).where(scores < 0, scores / penalty)
