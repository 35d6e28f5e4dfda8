"""Processors of an output's ends: its length, its first token and its last one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.renamed import renamed_parameters


class MinimumLength(LogitsProcessor):
    """An output does not end before ``min_len`` tokens.

    Args:
        min_len: tokens before end-of-sentence.
        end_tokens: ids that end an output besides end-of-sentence.
        yields: whether a sentence whose maximum is shorter may end there.
    """

    shift_invariant = True
    can_merge = True

    @renamed_parameters(end_symbols="end_tokens")
    def __init__(self, min_len: int, end_tokens: Sequence[int] = (), yields: bool = True):
        self.min_len, self.end_tokens, self.yields = min_len, list(end_tokens), yields

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if not context.has_joined and context.step >= self.min_len:
            return lprobs
        short = context.steps < self.min_len
        if self.yields:
            short &= context.max_lengths > context.step
        for token in (context.eos, *self.end_tokens):
            lprobs[:, token].masked_fill_(short, -torch.inf)
        return lprobs


class ForceEndAtMaximum(LogitsProcessor):
    """At a sentence's maximum length only end-of-sentence remains, with its own score."""

    shift_invariant = True
    can_merge = True

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step < context.first_end:
            return lprobs
        ending = context.max_lengths <= context.step
        end_scores = lprobs[ending, context.eos]
        lprobs[ending] = -torch.inf
        lprobs[ending, context.eos] = end_scores
        return lprobs


class ForceFirst(LogitsProcessor):
    """Every output begins with one token.

    Args:
        token: its id.
        keep_score: whether it keeps the model's score, as fairseq's prefixes do, or gets a score of 0, as in Hugging
            Face's toolkit.
    """

    def __init__(self, token: int, keep_score: bool = False):
        self.token, self.keep_score = token, keep_score

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        """Whether the token keeps its score."""
        return self.keep_score

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step > 0:
            return lprobs
        score = lprobs[:, self.token].clone() if self.keep_score else torch.zeros_like(lprobs[:, 0])
        lprobs.fill_(-torch.inf)[:, self.token] = score
        return lprobs


class ForceLast(LogitsProcessor):
    """An output of the longest length ends with one token, at a score of 0.

    Args:
        token: its id.
    """

    def __init__(self, token: int):
        self.token = token

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step < context.first_end:
            return lprobs
        ending = context.max_lengths <= context.step
        lprobs.masked_fill_(ending.unsqueeze(1), -torch.inf)
        lprobs[:, self.token].masked_fill_(ending, 0.0)
        return lprobs


class ExponentialDecay(LogitsProcessor):
    """From some length on, what ends an output gains more with every token.

    At ``n`` tokens past ``start`` its score ``s`` becomes ``s + |s| * (factor ** n - 1)``.

    Args:
        start: tokens that an output has before.
        factor: above 1, outputs become shorter.
        end_tokens: ids that end an output besides end-of-sentence.
    """

    @renamed_parameters(end_symbols="end_tokens")
    def __init__(self, start: int, factor: float, end_tokens: Sequence[int] = ()):
        self.start, self.factor, self.end_tokens = start, factor, list(end_tokens)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        past = context.step - self.start
        if past <= 0:
            return lprobs
        largest = torch.finfo(lprobs.dtype).max
        # a growth beyond all numbers stays a number, or 0 times it would be none
        growth = torch.tensor(self.factor, dtype=torch.float64).pow(past).sub(1).clamp(max=largest).item()
        ends = [context.eos, *self.end_tokens]
        scores = lprobs[:, ends]
        gained = (scores + (scores.abs() * growth).clamp(max=largest)).clamp(max=largest)
        lprobs[:, ends] = gained.masked_fill(scores == -torch.inf, -torch.inf)
        return lprobs
