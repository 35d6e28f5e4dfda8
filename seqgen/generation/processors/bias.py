"""Biases: added to the score of a token that would complete a given sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.renamed import renamed_parameters

_ANY, _NOTHING = -1, -2
"""What matches every token, and what no sequence has."""


class SequenceBias(LogitsProcessor):
    """A token gains a bias wherever it would complete a sequence; what several sequences give it adds up.

    Args:
        biases: bias in nats by sequence of token ids; sequences are not empty. ``-inf`` forbids.
    """

    shift_invariant = True

    def __init__(self, biases: Mapping[tuple[int, ...], float]):
        self.longest = max((len(sequence) for sequence in biases), default=1)
        # with a longest sequence of 3, (a b c) begins with [a b], (b c) with [any b], and (c) with [any any]
        beginnings = [[_ANY] * (self.longest - len(sequence)) + list(sequence[:-1]) for sequence in biases]
        self._beginnings = torch.tensor(beginnings, dtype=torch.int64).view(len(biases), self.longest - 1)
        self._last = torch.tensor([sequence[-1] for sequence in biases], dtype=torch.int64)
        self._biases = torch.tensor(list(biases.values()), dtype=torch.float64)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        gains = self._biases.to(lprobs)
        if self.longest > 1:
            begun = self._begun(context.tokens).to(lprobs.device)
            gains = gains.where(begun, 0.0)  # (rows, sequences)
        last = self._last.to(lprobs.device)
        return lprobs.scatter_add_(1, last.expand(lprobs.size(0), -1), gains.expand(lprobs.size(0), -1))

    def _begun(self, tokens: Tensor) -> Tensor:
        """Which sequences lack but their last token: ``(rows, sequences)`` bool."""
        size = self.longest - 1
        tail = tokens[:, -size:]
        tail = torch.nn.functional.pad(tail, (size - tail.size(1), 0), value=_NOTHING).unsqueeze(1)
        wanted = self._beginnings.to(tokens.device)
        return ((tail == wanted) | (wanted == _ANY)).all(-1)


class BadWords(SequenceBias):
    """Sequences that are never written. End-of-sentence alone cannot be one, or no output would ever end.

    Args:
        sequences: their token ids.
        end_tokens: ids that end an output, end-of-sentence among them.
    """

    @renamed_parameters(end_symbols="end_tokens")
    def __init__(self, sequences: Sequence[Sequence[int]], end_tokens: Sequence[int]):
        ends = {(token,) for token in end_tokens}
        super().__init__({tuple(sequence): -torch.inf for sequence in sequences if tuple(sequence) not in ends})
