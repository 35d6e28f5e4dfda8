"""Search strategies: which tokens continue which beams. They know nothing of models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.registry import register_search


@dataclass(frozen=True)
class Candidates:
    """Possible continuations of each sentence, best first.

    Attributes:
        scores: ``(sentences, K)`` sum of log-probabilities up to and including the new token; ``-inf`` where there is
            no further candidate.
        tokens: ``(sentences, K)`` int64, the new token.
        beams: ``(sentences, K)`` int64, the beam that it continues.
    """

    scores: Tensor
    tokens: Tensor
    beams: Tensor

    def select(self, keep: Tensor) -> Candidates:
        """The candidates of some sentences, ``keep`` being ``(kept,)`` int64."""
        return Candidates(*(tensor.index_select(0, keep) for tensor in (self.scores, self.tokens, self.beams)))

    def gather(self, columns: Tensor) -> Candidates:
        """Some candidates of each sentence, ``columns`` being ``(sentences, k)`` int64."""
        return Candidates(*(tensor.gather(1, columns) for tensor in (self.scores, self.tokens, self.beams)))


class Search:
    """A strategy; a subclass implements ``step``."""

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """Choose the candidates of each sentence.

        Twice as many as beams are wanted: at most one of each beam's candidates is end-of-sentence, so that enough
        others go on.

        Args:
            step: how many tokens each hypothesis has; at 0 all beams of a sentence are the same.
            lprobs: ``(sentences, beam, V)`` log-probabilities of the next token; ``-inf`` where it is forbidden.
            scores: ``(sentences, beam)`` sum of log-probabilities so far; ``-inf`` for a beam that is dead.

        Returns:
            ``2 * beam`` candidates of each sentence.
        """
        raise NotImplementedError


@register_search("beam")
class BeamSearch(Search):
    """Keeps the hypotheses with the largest sum of log-probabilities."""

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        beam, vocab = lprobs.shape[1:]
        if step == 0:
            lprobs, scores = lprobs[:, :1], scores[:, :1]
        # (sentences, beam, V) -> (sentences, beam * V): entry 2 * V + 7 is token 7 after beam 2
        totals = (lprobs + scores.unsqueeze(-1)).flatten(1)
        top_scores, entries = totals.topk(min(2 * beam, totals.size(1)), dim=1)
        return pad_candidates(Candidates(top_scores, entries % vocab, entries // vocab), 2 * beam)


def pad_candidates(candidates: Candidates, size: int) -> Candidates:
    """Fill up with candidates of score ``-inf`` where a small vocabulary gives fewer than ``size``."""
    missing = size - candidates.scores.size(1)
    if missing <= 0:
        return candidates
    return Candidates(
        torch.nn.functional.pad(candidates.scores, (0, missing), value=-torch.inf),
        torch.nn.functional.pad(candidates.tokens, (0, missing)),
        torch.nn.functional.pad(candidates.beams, (0, missing)),
    )
