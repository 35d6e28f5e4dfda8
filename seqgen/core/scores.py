"""Scores: what the search receives.

The score of a continuation is the cumulative score of its beam plus the log-probability of its token. ``Scores``
answers questions about these sums, so that a strategy that needs the best candidates does not compute all of them: the
log-softmax can stay pending (its log-sum-exp is subtracted from the cumulative score, which saves a pass over the
vocabulary), and only some tokens may have scores at all, those of a shortlist or of a trie of allowed outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from seqgen.core.candidates import Candidates, best_continuations, normalized


@dataclass(frozen=True)
class Scores:
    """The scores of the next token after each beam of the live sentences.

    Three tokens in the vocabulary, one sentence, two beams with the cumulative scores -1 and -2; all values are
    log-probabilities::

        values   -0.1 -2.5 -5.0      best(2)   -1.1 (token 0 after beam 0), -2.7 (token 1 after beam 1)
                 -0.9 -0.7 -2.8

    Attributes:
        values: ``(live, beam, W)`` log-probabilities, or logits if ``log_sum`` is pending; ``-inf`` for a forbidden
            token.
        beams: ``(live, beam)`` cumulative scores; ``-inf`` for a beam that does not exist.
        log_sum: ``(live, beam, 1)`` log-sum-exp of the logits; ``None`` if the values are log-probabilities.
        tokens: the tokens that have scores, if these are not all: ``(W,)`` int64 of all beams, or ``(live, beam, W)``.
        vocab_size: size of the vocabulary; ``W`` if not given.
        is_distribution: whether the probabilities of each row sum to one.
        in_blocks: whether ``best`` may search in two stages; see ``best_continuations``.
    """

    values: Tensor
    beams: Tensor
    log_sum: Tensor | None = None
    tokens: Tensor | None = None
    vocab_size: int = -1
    is_distribution: bool = False
    in_blocks: bool = True

    @property
    def size(self) -> int:
        """The size of the vocabulary."""
        return self.values.size(2) if self.vocab_size < 0 else self.vocab_size

    @cached_property
    def offsets(self) -> Tensor:
        """``(live, beam)`` what is added to the values of a beam: its cumulative score, less a pending log-sum-exp."""
        return self.beams if self.log_sum is None else self.beams - self.log_sum.squeeze(2)

    def best(self, count: int) -> Candidates:
        """The ``count`` best continuations of each sentence, best first; missing ones have score ``-inf``."""
        found = best_continuations(self.values, self.offsets, count, self.in_blocks)
        return found if self.tokens is None else replace(found, tokens=self.ids(found.tokens, found.beams))

    def best_of_each(self) -> Candidates:
        """The best continuation of each beam: candidate ``i`` continues beam ``i``."""
        best, columns = self.values.max(dim=-1)
        beams = own_beams(columns)
        return Candidates(self.offsets + best, self.ids(columns, beams), beams)

    def lprobs(self) -> Tensor:
        """``(live, beam, V)`` log-probabilities in nats of all tokens; ``-inf`` where a token is forbidden."""
        return self._lprobs

    @cached_property
    def _lprobs(self) -> Tensor:
        return self._of_all(self.values if self.log_sum is None else self.values - self.log_sum)

    def distribution(self) -> Tensor:
        """``(live, beam, V)`` log-probabilities, renormalized over the tokens that the processors allow."""
        return self._distribution

    @cached_property
    def _distribution(self) -> Tensor:
        if self.is_distribution:
            return self._lprobs
        found = normalized(self.values)
        # the log-sum-exp of damaged logits is NaN, whatever the processors allow
        return self._of_all(found if self.log_sum is None else found + 0.0 * self.log_sum)

    def seen(self) -> Tensor:
        """``(live, beam, V)`` what the search has added: ``distribution()`` if it asked for that, else ``lprobs()``."""
        return self._distribution if "_distribution" in vars(self) else self._lprobs

    def totals(self) -> Tensor:
        """``(live, beam, V)`` the score of each continuation."""
        return self._of_all(self.values + self.offsets.unsqueeze(-1))

    def of_beams(self, beams: slice) -> Scores:
        """The scores of some beams; the beams of candidates then count from the first of these."""
        per_beam = self.tokens is not None and self.tokens.dim() == 3
        return replace(
            self,
            values=self.values[:, beams],
            beams=self.beams[:, beams],
            log_sum=None if self.log_sum is None else self.log_sum[:, beams],
            tokens=self.tokens[:, beams] if self.tokens is not None and per_beam else self.tokens,
        )

    def plus(self, gains: Tensor) -> Scores:
        """These scores with ``gains`` added, ``(live, beam, V)`` or ``(live, 1, V)``."""
        if self.tokens is not None and self.tokens.dim() == 1:
            gains = gains[..., self.tokens]
        elif self.tokens is not None:
            gains = gains.expand(-1, self.values.size(1), -1).gather(2, self.tokens)
        return replace(self, values=self.values + gains, is_distribution=False)

    def ids(self, columns: Tensor, beams: Tensor) -> Tensor:
        """The tokens of ``columns`` of the values of ``beams``, all ``(live, k)`` int64."""
        if self.tokens is None:
            return columns
        if self.tokens.dim() == 1:
            return self.tokens[columns]
        return self.tokens.flatten(1).gather(1, beams * self.tokens.size(2) + columns)

    def _of_all(self, values: Tensor) -> Tensor:
        """``(live, beam, W)`` values as those of all tokens, ``(live, beam, V)``: ``-inf`` for the others."""
        if self.tokens is None:
            return values
        every = values.new_full((*self.beams.shape, self.size), -torch.inf)
        # amax, since a token that fills up a row of few tokens may occur twice
        return every.scatter_reduce(2, self.tokens.expand_as(values), values, "amax")


def own_beams(values: Tensor) -> Tensor:
    """The parent beams of ``(sentences, beam)`` candidates if candidate ``i`` continues beam ``i``."""
    if values.size(1) == 1:
        return torch.zeros_like(values, dtype=torch.int64)
    return torch.arange(values.size(1), device=values.device).expand_as(values).contiguous()
