"""Logits processors: small changes to the next-token scores. They know nothing of models or of search.

Here are the base class and those that nearly any decoding needs; others have files of their own: ``repetition``,
``sequence_bias``, ``forced_tokens``, ``rescaling``, ``cutoffs`` and ``prefix_trie``. ``processor_setup`` chooses among
them and puts them in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from seqgen.data.dictionary import Dictionary


@dataclass(frozen=True)
class DecodingContext:
    """What a processor or a stopping rule may look at.

    Attributes:
        step: how many tokens each hypothesis has.
        tokens: ``(rows, step)`` int64, these tokens, without a start symbol.
        max_lengths: ``(rows,)`` int64, the last step of each row: there end-of-sentence is forced, or the output is cut
            off, as the semantics say.
        first_end: the smallest of ``max_lengths``, so that nothing needs to be asked of the device before it.
        prefix_tokens: ``(rows, P)`` int64 tokens that each hypothesis begins with, padded on the right; or ``None``.
        eos: id of end-of-sentence.
        pad: id of padding.
        written: ``(rows, step)`` or ``(rows, step + 1)`` int64, what counts as written before: by Hugging Face's
            rules the start symbol and ``tokens``; ``tokens`` alone where not given.
        src_tokens: ``(rows, S)`` int64 ids of the source, padded; ``None`` where not known.
        src_padding: ``(rows, S)`` bool, true where they are padding; ``None`` where none is.
        sentences: ``(rows,)`` int64, which sentence each row belongs to; row by row where not given.
        starts: ``(rows,)`` int64, the step at which each row's sentence joined the batch; ``None`` where all began
            with it. ``step`` and ``max_lengths`` count from the batch's own beginning.
    """

    step: int
    tokens: Tensor
    max_lengths: Tensor
    first_end: int
    prefix_tokens: Tensor | None
    eos: int
    pad: int
    written: Tensor = cast(Tensor, None)  # never None after __post_init__
    src_tokens: Tensor | None = None
    src_padding: Tensor | None = None
    sentences: Tensor = cast(Tensor, None)
    starts: Tensor | None = None

    def __post_init__(self) -> None:
        if self.written is None:
            object.__setattr__(self, "written", self.tokens)
        if self.sentences is None:
            rows = torch.arange(self.tokens.size(0), device=self.tokens.device)
            object.__setattr__(self, "sentences", rows)

    @property
    def steps(self) -> Tensor:
        """How many tokens each row has, ``(rows,)`` int64."""
        return self.step - (torch.zeros_like(self.max_lengths) if self.starts is None else self.starts)


class LogitsProcessor:
    """Changes the scores of the next token; a subclass implements ``__call__``.

    One that is registered with ``@register_logits_processor`` can be chosen by name (``generation.processors``).
    """

    shift_invariant: bool = False
    """Whether a constant added to a row before gives the same as the constant added after; then the generator may hand
    over logits and take their normalizer off later, which spares a pass over the vocabulary."""

    reads_tokens: bool = True
    """Whether it looks at ``tokens`` or ``written``, which the generator otherwise need not put together."""

    joins: bool = False
    """Whether it is right where sentences have joined a running batch: it reads neither tokens nor sources, and counts
    steps by ``context.steps``."""

    @classmethod
    def build(cls, cfg: Any, dictionary: Dictionary) -> Self:
        """Make the processor from an instance of the configuration class that it is registered with.

        Args:
            cfg: the configuration; its fields are the constructor's arguments, or else a subclass overrides this.
            dictionary: the target vocabulary.
        """
        return cls(**{field.name: getattr(cfg, field.name) for field in fields(cfg)})

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """Change the scores of the next token.

        Args:
            lprobs: ``(rows, V)`` log-probabilities, which may be changed in place; by Hugging Face's rules, logits in
                greedy search and sampling.
            context: what is known of the rows.

        Returns:
            ``(rows, V)`` scores; ``-inf`` forbids a token.
        """
        raise NotImplementedError


def apply_all(processors: Sequence[LogitsProcessor], lprobs: Tensor, context: DecodingContext) -> Tensor:
    """Apply processors one after the other."""
    for processor in processors:
        lprobs = processor(lprobs, context)
    return lprobs


_FEW = 4


class Forbid(LogitsProcessor):
    """Some tokens are never written.

    Args:
        tokens: their ids.
    """

    shift_invariant = True
    reads_tokens = False
    joins = True

    def __init__(self, tokens: Sequence[int]):
        self.tokens = list(tokens)

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        for token in self.tokens[:_FEW]:  # one by one, without a table that must first go to the device
            lprobs[:, token] = -torch.inf
        if len(self.tokens) > _FEW:
            lprobs[:, self.tokens[_FEW:]] = -torch.inf
        return lprobs


class UnknownPenalty(LogitsProcessor):
    """The unknown word loses (below zero: gains) a constant.

    Args:
        unk: its id.
        penalty: what is subtracted, in nats.
    """

    shift_invariant = True
    reads_tokens = False
    joins = True

    def __init__(self, unk: int, penalty: float):
        self.unk, self.penalty = unk, penalty

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        lprobs[:, self.unk] -= self.penalty
        return lprobs


class ForceEndAtMaximum(LogitsProcessor):
    """At a sentence's maximum length only end-of-sentence remains, with its own score."""

    shift_invariant = True
    reads_tokens = False
    joins = True

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step < context.first_end:
            return lprobs
        ending = context.max_lengths <= context.step
        end_scores = lprobs[ending, context.eos]
        lprobs[ending] = -torch.inf
        lprobs[ending, context.eos] = end_scores
        return lprobs


class ForbidFirst(LogitsProcessor):
    """Some tokens are not written at one step.

    Args:
        tokens: their ids.
        step: the step; 0 for the first token.
    """

    shift_invariant = True
    reads_tokens = False

    def __init__(self, tokens: Sequence[int], step: int = 0):
        self.tokens, self.step = list(tokens), step

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step == self.step:
            lprobs[:, self.tokens] = -torch.inf
        return lprobs


class MinimumLength(LogitsProcessor):
    """An output does not end before ``min_len`` tokens.

    Args:
        min_len: tokens before end-of-sentence.
        end_symbols: ids that end an output besides end-of-sentence.
        yields: whether a sentence whose maximum is shorter may end there.
    """

    shift_invariant = True
    reads_tokens = False
    joins = True

    def __init__(self, min_len: int, end_symbols: Sequence[int] = (), yields: bool = True):
        self.min_len, self.end_symbols, self.yields = min_len, list(end_symbols), yields

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.starts is None and context.step >= self.min_len:
            return lprobs
        short = context.steps < self.min_len
        if self.yields:
            short &= context.max_lengths > context.step
        for symbol in (context.eos, *self.end_symbols):
            lprobs[:, symbol].masked_fill_(short, -torch.inf)
        return lprobs


class NoRepeatNgram(LogitsProcessor):
    """An n-gram that a hypothesis has is not completed a second time.

    Args:
        size: n.
    """

    shift_invariant = True

    def __init__(self, size: int):
        self.size = size

    def __call__(self, lprobs: Tensor, context: DecodingContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return forbid_completions(lprobs, context.written, context.written, self.size)


class ForcePrefix(LogitsProcessor):
    """Each hypothesis begins with given tokens, which keep the model's score.

    Args:
        otherwise: processors for the hypotheses whose prefix is over; a prefix overrules them.
    """

    def __init__(self, otherwise: Sequence[LogitsProcessor] = ()):
        self.otherwise = list(otherwise)
        self.shift_invariant = all(processor.shift_invariant for processor in self.otherwise)
        self.reads_tokens = any(processor.reads_tokens for processor in self.otherwise)
        self.joins = all(processor.joins for processor in self.otherwise)

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
