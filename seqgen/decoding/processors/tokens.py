"""Processors of tokens: forbidden, forced and biased tokens and sequences, and penalties of repetition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.config.values import LARGEST_FLOAT
from seqgen.core.component import BatchInfo, Composite
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError
from seqgen.core.processors import LogitsProcessor, apply_all
from seqgen.decoding.building import Resources
from seqgen.decoding.processors.length import Force

_FEW = 4

_ANY, _NOTHING = -1, -2
"""An id that matches every token, and an id that no sequence has."""


class Forbid(LogitsProcessor):
    """Forbids tokens at every step.

    Args:
        tokens: their ids.
    """

    shift_invariant = True
    certifiable = True
    can_merge = True
    token_attributes = ("tokens",)

    def __init__(self, tokens: Sequence[int]):
        self.tokens = list(tokens)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        for token in self.tokens[:_FEW]:  # a list index would first be copied to the device
            lprobs[:, token] = -torch.inf
        if len(self.tokens) > _FEW:
            lprobs[:, self.tokens[_FEW:]] = -torch.inf
        return lprobs


class ForbidFirst(LogitsProcessor):
    """Forbids tokens at one step.

    Args:
        tokens: their ids.
        step: the step; 0 for the first token.
    """

    shift_invariant = True
    certifiable = True
    token_attributes = ("tokens",)

    def __init__(self, tokens: Sequence[int], step: int = 0):
        self.tokens, self.step = list(tokens), step

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step == self.step:
            lprobs[:, self.tokens] = -torch.inf
        return lprobs


class UnknownPenalty(LogitsProcessor):
    """Subtracts a constant from the score of the unknown token.

    Args:
        unk: its id.
        penalty: in nats; negative values reward the token.
    """

    shift_invariant = True
    can_merge = True
    token_attributes = ("unk",)

    def __init__(self, unk: int, penalty: float):
        self.unk, self.penalty = unk, penalty

    @property
    def certifiable(self) -> bool:  # type: ignore[override]
        """True if it rewards no token."""
        return self.penalty >= 0

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        lprobs[:, self.unk] -= self.penalty
        return lprobs


def _of_all_parts(flag: str) -> Any:
    """A flag of a composite, which is true if it is true for all parts."""
    return property(lambda self: all(getattr(part, flag) for part in self.parts))


class ForcePrefix(Composite, Force):
    """Forces the prefix of each sentence (``prefix_tokens``), whose tokens keep the model's score.

    Args:
        otherwise: processors that apply only to rows whose prefix is complete.
    """

    token_attributes = ()  # with a prefix, all scores are computed

    def __init__(self, otherwise: Sequence[LogitsProcessor] = ()):
        self.parts: list[LogitsProcessor] = list(otherwise)

    shift_invariant = _of_all_parts("shift_invariant")
    can_merge = _of_all_parts("can_merge")
    certifiable = _of_all_parts("certifiable")

    def defer(self) -> LogitsProcessor | None:
        """See ``LogitsProcessor.defer``; called for batches without prefixes."""
        return self.parts[-1].defer() if self.parts else None

    def otherwise(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``Force.otherwise``."""
        return apply_all(self.parts, lprobs, context)

    def forced(self, context: StepContext) -> Tensor | None:
        """See ``LogitsProcessor.forced``."""
        prefix = context.prefix_tokens
        if prefix is None or context.step >= prefix.size(1):
            return None
        tokens = prefix[:, context.step]
        return tokens.where((tokens != context.pad) & (context.max_lengths > context.step), -1)


class SequenceBias(LogitsProcessor):
    """Adds a bias to a token that would complete a sequence; the biases of several sequences are summed.

    Args:
        biases: bias in nats by sequence of token ids; sequences are not empty. ``-inf`` forbids.
    """

    shift_invariant = True

    def __init__(self, biases: Mapping[tuple[int, ...], float]):
        self.longest = max((len(sequence) for sequence in biases), default=1)
        # prefixes are padded on the left: if (a b c) is the longest sequence, (b c) has the prefix [any b]
        beginnings = [[_ANY] * (self.longest - len(sequence)) + list(sequence[:-1]) for sequence in biases]
        self._beginnings = torch.tensor(beginnings, dtype=torch.int64).view(len(biases), self.longest - 1)
        self._last = torch.tensor([sequence[-1] for sequence in biases], dtype=torch.int64)
        self._biases = torch.tensor(list(biases.values()), dtype=torch.float64)

    @property
    def certifiable(self) -> bool:  # type: ignore[override]
        """True if no bias is a reward."""
        return bool((self._biases <= 0).all())

    @property
    def can_merge(self) -> bool:  # type: ignore[override]
        """Biases of single tokens do not depend on the generated tokens."""
        return self.longest == 1

    @property
    def token_attributes(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """See ``can_merge``."""
        return ("_last",) if self.longest == 1 else None

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Component.begin``."""
        processor = super().begin(batch)
        for name in ("_beginnings", "_last", "_biases"):
            setattr(processor, name, getattr(self, name).to(batch.device))
        return processor

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        gains = self._biases.to(lprobs)
        if self.longest > 1:
            tokens, padding = context.generated, context.generated_padding
            tokens = tokens if padding is None else tokens.masked_fill(padding, _NOTHING)
            if context.sentences.counts_start:  # as in transformers, no sequence begins with the first token of all
                first = (tokens != _NOTHING).int().argmax(1, keepdim=True)
                tokens = tokens.scatter(1, first, _NOTHING)
            size = self.longest - 1
            missing = max(0, size - tokens.size(1))
            tail = torch.nn.functional.pad(tokens[:, -size:], (missing, 0), value=_NOTHING).unsqueeze(1)
            # (rows, sequences), whether the row ends with the sequence without its last token
            begun = ((tail == self._beginnings) | (self._beginnings == _ANY)).all(-1)
            gains = gains.where(begun, 0.0)
        return lprobs.scatter_add_(1, self._last.expand(lprobs.size(0), -1), gains.expand(lprobs.size(0), -1))


class BadWords(SequenceBias):
    """Forbids sequences of tokens. A sequence that consists of one end token is ignored, so that outputs can end.

    Args:
        sequences: their token ids.
        end_tokens: ids that end an output, end-of-sentence among them.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], end_tokens: Sequence[int]):
        ends = {(token,) for token in end_tokens}
        super().__init__({tuple(sequence): -torch.inf for sequence in sequences if tuple(sequence) not in ends})


def biases_of_texts(entries: Sequence[str], resources: Resources) -> dict[tuple[int, ...], float]:
    """Read entries ``TEXT=BIAS`` for ``SequenceBias``; the biases of a text that is given twice are added."""
    found: dict[tuple[int, ...], float] = {}
    for entry in entries:
        text, _, number = entry.rpartition("=")
        try:
            bias = float(number)
        except ValueError:
            bias = math.nan
        if not text or not abs(bias) <= LARGEST_FLOAT:
            raise ConfigError(
                f"{entry!r} is not TEXT=BIAS with a number of at most {LARGEST_FLOAT:g}; to forbid a text, add it to "
                "generation.bad_words"
            )
        ids = resources.sequence(text)
        found[ids] = found.get(ids, 0.0) + bias
    return found


class PrefixConstraint(LogitsProcessor):
    """Allows the next tokens that a function returns (De Cao et al. 2021). It is used from Python only.

    Args:
        allowed: called with the id of a sentence and its generated tokens, ``(K,)`` int64 (under Hugging Face's rules
            with the start token; of a decoder-only model with the prompt); returns the ids of the allowed next tokens.
            If there are none, the hypothesis is dropped.
    """

    shift_invariant = True
    certifiable = True

    def __init__(self, allowed: Callable[[int, Tensor], Sequence[int]]):
        self.allowed = allowed

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        mask = torch.full_like(lprobs, -torch.inf)
        padding = context.generated_padding
        for row, (sentence, generated) in enumerate(zip(context.sentence_ids.tolist(), context.generated, strict=True)):
            counted = generated if padding is None else generated[~padding[row]]
            mask[row, list(self.allowed(sentence, counted))] = 0.0
        return lprobs + mask


def _text(context: StepContext, of_source: bool) -> tuple[Tensor | None, Tensor | None]:
    """The tokens of the source, ``None`` if they are not known, or those generated; and where they are padding."""
    if of_source:
        return context.src_tokens, context.src_padding
    return context.generated, context.generated_padding


class NoRepeatNgram(LogitsProcessor):
    """Forbids tokens that would complete an n-gram that already occurs in the hypothesis.

    Args:
        size: n.
    """

    shift_invariant = True
    certifiable = True
    of_source = False

    def __init__(self, size: int):
        self.size = size

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        size, generated, (text, padding) = self.size, context.generated, _text(context, self.of_source)
        if text is None or text.size(1) < size or generated.size(1) < size - 1:
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


class EncoderNoRepeatNgram(NoRepeatNgram):
    """Forbids tokens that would complete an n-gram of the source; n-grams with padding are ignored."""

    of_source = True


class RepetitionPenalty(LogitsProcessor):
    """Lowers the scores of tokens that were generated before (Keskar et al. 2019, section 4.1).

    A negative score is multiplied by the penalty and a positive one divided by it, so that both become smaller. A token
    that occurs twice is lowered once.

    Args:
        penalty: values above 1 avoid repetitions, values below 1 encourage them.
    """

    of_source = False

    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        tokens, padding = _text(context, self.of_source)
        if tokens is None:
            return lprobs
        if padding is None:
            return lprobs.scatter(1, tokens, self._lowered(lprobs.gather(1, tokens)))
        size = lprobs.size(1)
        columns = tokens.masked_fill(padding, size)  # padding falls into a column that is dropped
        occurs = torch.zeros_like(lprobs[:, :1], dtype=torch.bool).repeat(1, size + 1).scatter_(1, columns, True)
        return torch.where(occurs[:, :size], self._lowered(lprobs), lprobs)

    def _lowered(self, scores: Tensor) -> Tensor:
        penalty = 1 / self.penalty if self.of_source else self.penalty
        return (scores * penalty).where(scores < 0, scores / penalty)


class EncoderRepetitionPenalty(RepetitionPenalty):
    """Raises the scores of the source's tokens: ``RepetitionPenalty`` with the inverse of the penalty.

    Padding of the source is ignored, so that an output does not depend on the other sentences of the batch.

    Args:
        penalty: values above 1 prefer tokens of the source, values below 1 avoid them.
    """

    of_source = True
