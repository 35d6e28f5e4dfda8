"""Processors that look at what stands in the output or in the source already."""

from __future__ import annotations

from torch import Tensor

from seqgen.generation.processors.base import DecodingContext, LogitsProcessor, forbid_completions


class RepetitionPenalty(LogitsProcessor):
    """Tokens that were written before lose (Keskar et al. 2019, section 4.1).

    A negative score is multiplied by the penalty and a positive one divided by it, so that both become smaller.

    Args:
        penalty: above 1, repetitions are avoided; below 1, sought.
    """

    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return _shrink(lprobs, context.written, self.penalty)


class EncoderRepetitionPenalty(LogitsProcessor):
    """Tokens that the source lacks lose, in that those it has gain: ``RepetitionPenalty`` turned around.

    Padding of the source does not count, so that a sentence's output does not depend on its neighbours' lengths.

    Args:
        penalty: above 1, tokens of the source are preferred; below 1, avoided.
    """

    reads_tokens = False

    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        source = context.src_tokens
        if source is None:
            return lprobs
        if context.src_padding is not None:
            # a row is padded on one side only: what stands at the other end is a token, and one may stand for padding
            first, last = source[:, :1], source[:, -1:]
            source = source.where(~context.src_padding, first.where(~context.src_padding[:, :1], last))
        return _shrink(lprobs, source, 1 / self.penalty)


class EncoderNoRepeatNgram(LogitsProcessor):
    """An n-gram that the source has is not completed in the output.

    Args:
        size: n.
    """

    shift_invariant = True

    def __init__(self, size: int):
        self.size = size

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.src_tokens is None:
            return lprobs
        return forbid_completions(lprobs, context.src_tokens, context.written, self.size, context.src_padding)


def _shrink(scores: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """Make the scores of some tokens of each row smaller; a token that occurs twice counts once."""
    old = scores.gather(1, tokens)
    return scores.scatter(1, tokens, (old * penalty).where(old < 0, old / penalty))
