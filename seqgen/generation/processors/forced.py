"""Tokens that an output begins or ends with, and the pull towards its end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqgen.generation.processors.base import DecodingContext, LogitsProcessor


class ForceFirst(LogitsProcessor):
    """Every output begins with one token.

    Args:
        token: its id.
        keep_score: whether it keeps the model's score, as fairseq's prefixes do, or gets a score of 0, as in Hugging
            Face's toolkit.
    """

    reads_tokens = False

    def __init__(self, token: int, keep_score: bool = False):
        self.token, self.keep_score = token, keep_score
        self.shift_invariant = keep_score

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
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

    reads_tokens = False

    def __init__(self, token: int):
        self.token = token

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
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
        end_symbols: ids that end an output besides end-of-sentence.
    """

    reads_tokens = False

    def __init__(self, start: int, factor: float, end_symbols: Sequence[int] = ()):
        self.start, self.factor, self.end_symbols = start, factor, list(end_symbols)

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        past = context.step - self.start
        if past <= 0:
            return lprobs
        largest = torch.finfo(lprobs.dtype).max
        # a growth beyond all numbers stays a number, or 0 times it would be none
        growth = torch.tensor(self.factor, dtype=torch.float64).pow(past).sub(1).clamp(max=largest).item()
        ends = [context.eos, *self.end_symbols]
        scores = lprobs[:, ends]
        gained = (scores + (scores.abs() * growth).clamp(max=largest)).clamp(max=largest)
        lprobs[:, ends] = gained.masked_fill(scores == -torch.inf, -torch.inf)
        return lprobs
