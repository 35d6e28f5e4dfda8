"""Logits processors: small changes to the next-token scores. They know nothing of models or of search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DecodingContext:
    """What a processor may look at.

    Attributes:
        step: how many tokens each hypothesis has.
        tokens: ``(rows, step)`` int64, these tokens, without a start symbol.
        max_lengths: ``(rows,)`` int64, the step at which end-of-sentence is forced.
        first_end: the smallest of ``max_lengths``, so that nothing needs to be asked of the device before it.
        prefix_tokens: ``(rows, P)`` int64 tokens that each hypothesis begins with, padded on the right; or ``None``.
        eos: id of end-of-sentence.
        pad: id of padding.
    """

    step: int
    tokens: Tensor
    max_lengths: Tensor
    first_end: int
    prefix_tokens: Tensor | None
    eos: int
    pad: int


class LogitsProcessor:
    """Changes log-probabilities; a subclass implements ``__call__``."""

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """Change the scores of the next token.

        Args:
            lprobs: ``(rows, V)`` log-probabilities, which may be changed in place.
            context: what is known of the rows.

        Returns:
            ``(rows, V)`` scores; ``-inf`` forbids a token.
        """
        raise NotImplementedError


class Forbid(LogitsProcessor):
    """Some tokens are never written.

    Args:
        tokens: their ids.
    """

    def __init__(self, tokens: Sequence[int]):
        self.tokens = list(tokens)

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        lprobs[:, self.tokens] = -torch.inf
        return lprobs


class UnknownPenalty(LogitsProcessor):
    """The unknown word loses (below zero: gains) a constant.

    Args:
        unk: its id.
        penalty: what is subtracted, in nats.
    """

    def __init__(self, unk: int, penalty: float):
        self.unk, self.penalty = unk, penalty

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        lprobs[:, self.unk] -= self.penalty
        return lprobs


class ForceEndAtMaximum(LogitsProcessor):
    """At a sentence's maximum length only end-of-sentence remains, with its own score."""

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step < context.first_end:
            return lprobs
        ending = context.max_lengths <= context.step
        end_scores = lprobs[ending, context.eos]
        lprobs[ending] = -torch.inf
        lprobs[ending, context.eos] = end_scores
        return lprobs


class MinimumLength(LogitsProcessor):
    """End-of-sentence is forbidden before ``min_len`` tokens, unless the sentence's maximum forces it.

    Args:
        min_len: tokens before end-of-sentence.
    """

    def __init__(self, min_len: int):
        self.min_len = min_len

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step < self.min_len:
            lprobs[:, context.eos].masked_fill_(context.max_lengths > context.step, -torch.inf)
        return lprobs


class NoRepeatNgram(LogitsProcessor):
    """An n-gram that a hypothesis has is not completed a second time.

    Args:
        size: n.
    """

    def __init__(self, size: int):
        self.size = size

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step < self.size:
            return lprobs
        # tokens a b c a b, size 3: the windows are abc, bca, cab; abc begins with the last two tokens, so c is banned
        windows = context.tokens.unfold(1, self.size, 1)  # (rows, step - size + 1, size)
        last = context.tokens[:, context.step - self.size + 1 :].unsqueeze(1)  # (rows, 1, size - 1)
        repeated = (windows[..., :-1] == last).all(-1)
        banned = windows[..., -1].masked_fill(~repeated, context.pad)  # padding is forbidden anyway
        return lprobs.scatter(1, banned, -torch.inf)


class ForcePrefix(LogitsProcessor):
    """Each hypothesis begins with given tokens, which keep the model's score.

    Args:
        otherwise: processors for the hypotheses whose prefix is over; a prefix overrules them.
    """

    def __init__(self, otherwise: Sequence[LogitsProcessor] = ()):
        self.otherwise = list(otherwise)

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        prefix = context.prefix_tokens
        if prefix is None or context.step >= prefix.size(1):
            return apply_all(self.otherwise, lprobs, context)
        forced = prefix[:, context.step]
        bound = (forced != context.pad) & (context.max_lengths > context.step)
        scores = lprobs.gather(1, forced.unsqueeze(1))
        only = torch.full_like(lprobs, -torch.inf).scatter_(1, forced.unsqueeze(1), scores)
        return torch.where(bound.unsqueeze(1), only, apply_all(self.otherwise, lprobs, context))


def apply_all(processors: Sequence[LogitsProcessor], lprobs: Tensor, context: DecodingContext) -> Tensor:
    """Apply processors one after the other."""
    for processor in processors:
        lprobs = processor(lprobs, context)
    return lprobs
