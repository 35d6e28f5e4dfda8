"""Finished hypotheses: which candidates end a sentence, and how they rank."""

from __future__ import annotations

import torch
from torch import Tensor

from seqgen.structures import Hypothesis


class FinishedHypotheses:
    """Collects the finished hypotheses of a batch, by fairseq's rule.

    The first ``beam`` hypotheses that finish win, whatever those that go on would have scored.

    Args:
        sentences: sentences in the batch.
        beam: hypotheses wanted for each.
        len_penalty: power of the length that the sum of log-probabilities is divided by.
        normalize_scores: whether it is divided at all.
        device: where the tensors live.
    """

    def __init__(
        self, sentences: int, beam: int, len_penalty: float, normalize_scores: bool, device: torch.device | str
    ):
        self.beam = beam
        self.len_penalty = len_penalty
        self.normalize_scores = normalize_scores
        self.count = torch.zeros(sentences, dtype=torch.int64, device=device)
        self._sentences: list[Tensor] = []
        self._hypotheses: list[Hypothesis] = []

    def add(
        self,
        sentences: Tensor,
        ended: Tensor,
        tokens: Tensor,
        scores: Tensor,
        positional_scores: Tensor,
        attention: Tensor | None,
    ) -> None:
        """Take the hypotheses that end at this step, as many as are still wanted.

        Args:
            sentences: ``(live,)`` int64, which sentence of the batch each row is.
            ended: ``(live, K)`` bool, which candidates end, best first.
            tokens: ``(live, K, step + 1)`` int64 of each candidate, end-of-sentence included.
            scores: ``(live, K)`` sums of log-probabilities.
            positional_scores: ``(live, K, step + 1)`` log-probability of each token.
            attention: ``(live, K, step + 1, S)``, or ``None``.
        """
        count = self.count[sentences]
        # count 3 of beam 5, ended [1, 0, 1, 1]: places [3, -, 4, 5], so that the last one comes too late
        place = count.unsqueeze(1) + ended.cumsum(1) - 1
        taken = ended & (place < self.beam)
        self.count[sentences] = count + taken.sum(1)
        rows, columns = taken.nonzero(as_tuple=True)
        if rows.numel() == 0:
            return
        totals = scores[rows, columns]
        if self.normalize_scores:
            totals = totals / tokens.size(-1) ** self.len_penalty
        picked = zip(tokens[rows, columns].cpu(), totals.tolist(), positional_scores[rows, columns].cpu(), strict=True)
        weights = None if attention is None else attention[rows, columns].cpu()
        for number, (sequence, score, positional) in enumerate(picked):
            hypothesis = Hypothesis(sequence, score, positional)
            if weights is not None:
                hypothesis.attention = weights[number]
                hypothesis.alignment = weights[number].argmax(-1)
            self._hypotheses.append(hypothesis)
        self._sentences.append(sentences[rows].cpu())

    def ranked(self) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, best first; those with equal scores in the order in which they finished."""
        results: list[list[Hypothesis]] = [[] for _ in range(len(self.count))]
        owners = torch.cat(self._sentences).tolist() if self._sentences else []
        for sentence, hypothesis in zip(owners, self._hypotheses, strict=True):
            results[sentence].append(hypothesis)
        return [sorted(hypotheses, key=lambda h: h.score, reverse=True) for hypotheses in results]
