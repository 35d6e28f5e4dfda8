"""Processors that compare with what stands in the output or in the source already."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.registry import register_logits_processor


@dataclass
class NoRepeatNgramConfig:
    """Configuration of the logits processor no_repeat_ngram."""

    size: int = option(3, "n-grams of this size occur at most once", minimum=1)


@register_logits_processor("no_repeat_ngram", config=NoRepeatNgramConfig)
class NoRepeatNgram(LogitsProcessor):
    """An n-gram that a hypothesis has is not completed a second time.

    Args:
        size: n.
    """

    shift_invariant = True

    def __init__(self, size: int):
        self.size = size

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return forbid_completions(lprobs, context.generated, context.generated, self.size)


@dataclass
class EncoderNoRepeatNgramConfig:
    """Configuration of the logits processor encoder_no_repeat_ngram."""

    size: int = option(3, "n-grams of this size that the source has are not written", minimum=1)


@register_logits_processor("encoder_no_repeat_ngram", config=EncoderNoRepeatNgramConfig)
class EncoderNoRepeatNgram(LogitsProcessor):
    """An n-gram that the source has is not completed in the output.

    Args:
        size: n.
    """

    shift_invariant = True

    def __init__(self, size: int):
        self.size = size

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.src_tokens is None:
            return lprobs
        return forbid_completions(lprobs, context.src_tokens, context.generated, self.size, context.src_padding)


@dataclass
class RepetitionPenaltyConfig:
    """Configuration of the logits processor repetition_penalty."""

    penalty: float = option(
        1.2, "factor that lowers the scores of generated tokens; above 1 avoids repetitions", minimum=1e-6
    )


@register_logits_processor("repetition_penalty", config=RepetitionPenaltyConfig)
class RepetitionPenalty(LogitsProcessor):
    """Tokens that were written before lose (Keskar et al. 2019, section 4.1).

    A negative score is multiplied by the penalty and a positive one divided by it, so that both become smaller.

    Args:
        penalty: above 1, repetitions are avoided; below 1, sought.
    """

    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return _shrink(lprobs, context.generated, self.penalty)


@dataclass
class EncoderRepetitionPenaltyConfig:
    """Configuration of the logits processor encoder_repetition_penalty."""

    penalty: float = option(
        1.2, "factor that raises the scores of the source's tokens; above 1 prefers them", minimum=1e-6
    )


@register_logits_processor("encoder_repetition_penalty", config=EncoderRepetitionPenaltyConfig)
class EncoderRepetitionPenalty(LogitsProcessor):
    """Tokens that the source lacks lose, in that those it has gain: ``RepetitionPenalty`` turned around.

    Padding of the source does not count, so that a sentence's output does not depend on its neighbours' lengths.

    Args:
        penalty: above 1, tokens of the source are preferred; below 1, avoided.
    """

    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        source = context.src_tokens
        if source is None:
            return lprobs
        if context.src_padding is not None:
            # a row is padded on one side only: what stands at the other end is a token, and one may stand for padding
            first, last = source[:, :1], source[:, -1:]
            source = source.where(~context.src_padding, first.where(~context.src_padding[:, :1], last))
        return _shrink(lprobs, source, 1 / self.penalty)


def forbid_completions(
    lprobs: Tensor, text: Tensor, written: Tensor, size: int, padding: Tensor | None = None
) -> Tensor:
    """Forbid the last token of each n-gram of a text whose other tokens were written last.

    Args:
        lprobs: ``(rows, V)``, changed in place.
        text: ``(rows, L)`` int64 whose n-grams count.
        written: ``(rows, K)`` int64.
        size: n.
        padding: ``(rows, L)`` bool, true where the text is padding; n-grams that touch it do not count.

    Returns:
        ``lprobs``.
    """
    if text.size(1) < size or written.size(1) < size - 1:
        return lprobs
    # text a b c a b, size 3: the windows are abc, bca, cab; abc begins with the last two tokens, so c is banned
    windows = text.unfold(1, size, 1)  # (rows, L - size + 1, size)
    last = written[:, written.size(1) - size + 1 :].unsqueeze(1)  # (rows, 1, size - 1)
    repeated = (windows[..., :-1] == last).all(-1)
    if padding is not None:
        repeated &= ~padding.unfold(1, size, 1).any(-1)
    # the smaller of what is there and of -inf (forbidden) or inf (not): a token may stand in several windows
    limits = torch.where(repeated, -torch.inf, torch.inf).to(lprobs.dtype)
    return lprobs.scatter_reduce_(1, windows[..., -1], limits, "amin")


def _shrink(scores: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """Make the scores of some tokens of each row smaller; a token that occurs twice counts once."""
    old = scores.gather(1, tokens)
    return scores.scatter(1, tokens, (old * penalty).where(old < 0, old / penalty))
