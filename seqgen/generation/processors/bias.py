"""Biases, added to the score of a token that would complete a given sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seqgen.config.values import LARGEST_FLOAT
from seqgen.errors import ConfigError
from seqgen.generation.component import Resources
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor

_ANY, _NOTHING = -1, -2
"""An id that matches every token, and an id that no sequence has."""


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
        """Whether no bias is a reward."""
        return bool((self._biases <= 0).all())

    @property
    def can_merge(self) -> bool:  # type: ignore[override]
        """Biases of single tokens do not depend on the generated tokens."""
        return self.longest == 1

    @property
    def token_attributes(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """See ``can_merge``."""
        return ("_last",) if self.longest == 1 else None

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        gains = self._biases.to(lprobs)
        if self.longest > 1:
            tokens, padding = context.generated, context.generated_padding
            tokens = tokens if padding is None else tokens.masked_fill(padding, _NOTHING)
            if context.sentences.counts_start:  # as in transformers, no sequence begins with the first token of all
                first = (tokens != _NOTHING).int().argmax(1, keepdim=True)
                tokens = tokens.scatter(1, first, _NOTHING)
            gains = gains.where(self._match_prefixes(tokens).to(lprobs.device), 0.0)  # (rows, sequences)
        last = self._last.to(lprobs.device)
        return lprobs.scatter_add_(1, last.expand(lprobs.size(0), -1), gains.expand(lprobs.size(0), -1))

    def _match_prefixes(self, tokens: Tensor) -> Tensor:
        """Whether each row ends with each sequence without its last token: ``(rows, sequences)`` bool."""
        size = self.longest - 1
        tail = tokens[:, -size:]
        tail = torch.nn.functional.pad(tail, (size - tail.size(1), 0), value=_NOTHING).unsqueeze(1)
        wanted = self._beginnings.to(tokens.device)
        return ((tail == wanted) | (wanted == _ANY)).all(-1)


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
    for text, bias in map(_text_and_bias, entries):
        ids = resources.sequence(text)
        found[ids] = found.get(ids, 0.0) + bias
    return found


def _text_and_bias(entry: str) -> tuple[str, float]:
    """Read ``TEXT=BIAS``."""
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
    return text, bias
