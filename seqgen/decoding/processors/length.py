"""Processors of the length of an output, and of its first and last token."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.processors import LogitsProcessor


class MinimumLength(LogitsProcessor):
    """Forbids end tokens before an output has ``min_len`` tokens.

    Args:
        min_len: tokens before end-of-sentence.
        end_tokens: ids that end an output besides end-of-sentence.
        yields: whether a sentence whose maximum length is below ``min_len`` may end at its maximum length.
        counts_prompt: whether the tokens of a prompt count, too; other sources never count.
    """

    shift_invariant = True
    can_merge = True
    certifiable = True
    token_attributes = ("end_tokens",)

    def __init__(self, min_len: int, end_tokens: Sequence[int] = (), yields: bool = True, counts_prompt: bool = False):
        self.min_len, self.end_tokens, self.yields = min_len, list(end_tokens), yields
        self.counts_prompt = counts_prompt

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if not context.has_joined and context.step >= self.min_len:
            return lprobs
        if not context.has_joined and context.step < context.first_end and not context.sentences.continues_source:
            for token in (context.eos, *self.end_tokens):
                lprobs[:, token].fill_(-torch.inf)  # all rows have the same length, and none is at its maximum
            return lprobs
        counted, prompts = context.steps, context.src_tokens
        if self.counts_prompt and context.sentences.continues_source and prompts is not None:
            counted = counted + (prompts.size(1) if context.src_padding is None else (~context.src_padding).sum(1))
        short = counted < self.min_len
        if self.yields:
            short &= context.max_lengths > context.step
        for token in (context.eos, *self.end_tokens):
            lprobs[:, token].masked_fill_(short, -torch.inf)
        return lprobs


class Force(LogitsProcessor):
    """Forbids all tokens but one in some rows; a subclass implements ``forced``."""

    keep_score: bool = True
    """Whether the token keeps the model's score, as in fairseq, or gets a score of 0, as in Hugging Face's toolkit."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if (tokens := self.forced(context)) is None:
            return self.otherwise(lprobs, context)
        columns = tokens.clamp(min=0).unsqueeze(1)
        scores = lprobs.gather(1, columns) if self.keep_score else torch.zeros_like(lprobs[:, :1])
        only = torch.full_like(lprobs, -torch.inf).scatter_(1, columns, scores)
        return torch.where(tokens.unsqueeze(1) >= 0, only, self.otherwise(lprobs, context))

    def otherwise(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """The scores ``(rows, V)`` of rows in which no token is forced, which are not changed by default."""
        return lprobs


def _at_maximum(context: StepContext, token: int) -> Tensor | None:
    """A token that is forced in rows at their maximum length; see ``LogitsProcessor.forced``."""
    if context.step < context.first_end:
        return None
    return torch.where(context.max_lengths <= context.step, token, -1)


class ForceEndAtMaximum(Force):
    """At the maximum length of a sentence, forbids all tokens but end-of-sentence, whose score stays."""

    shift_invariant = True
    can_merge = True
    certifiable = True
    forces_end = True
    token_attributes = ()

    def forced(self, context: StepContext) -> Tensor | None:
        """See ``LogitsProcessor.forced``."""
        return _at_maximum(context, context.eos)


class ForceFirst(Force):
    """Forces the first token of every output.

    Args:
        token: its id. A batch can have another token for each sentence (``Batch.first_tokens``).
        keep_score: see ``Force``.
    """

    can_merge = True  # the first step of waiting sentences is decoded before they join
    token_attributes = ("token", "tokens")

    def __init__(self, token: int, keep_score: bool = False):
        self.token, self.keep_score = token, keep_score
        self.tokens: Tensor | None = None

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        """True if the token keeps the model's score."""
        return self.keep_score

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Component.begin``."""
        processor = copy.copy(self)
        processor.tokens = batch.first_tokens
        return processor

    def forced(self, context: StepContext) -> Tensor | None:
        """See ``LogitsProcessor.forced``."""
        if context.step > 0:
            return None
        # no sentence has left the batch at the first step
        return torch.full_like(context.max_lengths, self.token) if self.tokens is None else context.by_row(self.tokens)


class ForceLast(Force):
    """At the maximum length of a sentence, forces one token, with a score of 0.

    Args:
        token: its id.
    """

    keep_score = False
    forces_end = True
    token_attributes = ("token",)

    def __init__(self, token: int):
        self.token = token

    def forced(self, context: StepContext) -> Tensor | None:
        """See ``LogitsProcessor.forced``."""
        return _at_maximum(context, self.token)


class ExponentialDecay(LogitsProcessor):
    """Raises the scores of end tokens exponentially with the length of the output.

    ``n`` tokens after ``start``, a score ``s`` becomes ``s + |s| * (factor ** n - 1)``.

    Args:
        start: output length up to which scores do not change.
        factor: values above 1 make outputs shorter.
        end_tokens: ids that end an output besides end-of-sentence.
    """

    def __init__(self, start: int, factor: float, end_tokens: Sequence[int] = ()):
        self.start, self.factor, self.end_tokens = start, factor, list(end_tokens)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        past = context.step - self.start
        if past <= 0:
            return lprobs
        largest = torch.finfo(lprobs.dtype).max
        # growth is clamped to the largest finite value: 0 * inf would be NaN
        growth = torch.tensor(self.factor, dtype=torch.float64).pow(past).sub(1).clamp(max=largest).item()
        for token in {context.eos, *self.end_tokens}:  # one by one, since a list would be copied to the device
            scores = lprobs[:, token]
            gained = (scores + (scores.abs() * growth).clamp(max=largest)).clamp(max=largest)
            lprobs[:, token] = gained.masked_fill(scores == -torch.inf, -torch.inf)
        return lprobs
