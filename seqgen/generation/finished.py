"""Finished hypotheses: which candidates end, how they rank, and when a sentence is done.

Three rules, each a class; docs/decoding.md compares them. Everything stays in tensors of fixed shape, so that nothing
waits for the device: a finished hypothesis is the place where it ended, and ``BackPointers`` reads it backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.generation.backpointers import BackPointers
from seqgen.generation.candidates import Candidates
from seqgen.structures import Hypothesis


@dataclass(frozen=True)
class Ranking:
    """How the sum of log-probabilities of a finished hypothesis becomes its score.

    Attributes:
        normalize: whether the sum is divided at all.
        len_penalty: alpha; above 1 favours longer outputs.
        kind: ``"power"`` divides by ``length ** alpha``, ``"wu"`` by ``((5 + length) / 6) ** alpha`` (Wu et al. 2016,
            equation 14).
        coverage: beta of the coverage penalty (same equation): adds ``beta`` times the sum over source positions of
            the logarithm of the attention that they got, at most 1 each.
    """

    normalize: bool = True
    len_penalty: float = 1.0
    kind: str = "power"
    coverage: float = 0.0

    def score(self, sums: Tensor, length: int | Tensor) -> Tensor:
        """Divide by the length penalty.

        Args:
            sums: log-probabilities in nats.
            length: tokens, the last one included; a number, or a tensor that broadcasts against ``sums``.
        """
        if not self.normalize:
            return sums
        length = length.to(sums.dtype) if isinstance(length, Tensor) else length
        base = (5 + length) / 6 if self.kind == "wu" else length
        divisor: Tensor | float = base**self.len_penalty
        return sums / divisor

    @property
    def favours_length(self) -> bool:
        """Whether the same sum scores better over more tokens."""
        return self.normalize and self.len_penalty > 0


class FinishedHypotheses:
    """The finished hypotheses of the live sentences; a subclass says which candidates finish and when enough have.

    Args:
        sentences: sentences of the batch.
        beam: places for hypotheses of each.
        ranking: how they score.
        device: where the tensors live.
    """

    def __init__(self, sentences: int, beam: int, ranking: Ranking, device: torch.device):
        self.beam = beam
        self.ranking = ranking
        self.lengths = torch.zeros(sentences, beam, dtype=torch.int64, device=device)
        """Tokens of the hypothesis in each place, the last one included; 0 where the place is free."""
        self.beams = torch.zeros_like(self.lengths)
        self.tokens = torch.zeros_like(self.lengths)
        self.cumulative = torch.full((sentences, beam), -torch.inf, device=device)
        self.scores = torch.full_like(self.cumulative, -torch.inf)

    def finalize(
        self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None = None
    ) -> Candidates:
        """Finalize candidates that end, and choose those that continue.

        Args:
            candidates: ``K`` of each live sentence, in the order in which they are preferred.
            ends: ``(live, K)`` bool, which of them end.
            step: how many tokens they continue; ``(live, 1)`` int64 where sentences differ in that.
            bonus: ``(live, K)`` added to the score of a hypothesis, such as the coverage penalty; ``None`` for nothing.

        Returns:
            ``beam`` candidates of each sentence that continue; of score ``-inf`` where there are fewer.
        """
        raise NotImplementedError

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """Which sentences need no further hypotheses, or can get none.

        Args:
            active: what ``take`` returned.
            step: the same as there, ``(live,)`` int64 where sentences differ.
            max_lengths: ``(live,)`` int64, the last step of each sentence.

        Returns:
            ``(live,)`` bool.
        """
        raise NotImplementedError

    def select(self, keep: Tensor) -> None:
        """Keep the sentences in ``keep``, ``(kept,)`` int64."""
        for name in ("lengths", "beams", "tokens", "cumulative", "scores"):
            setattr(self, name, getattr(self, name).index_select(0, keep))

    def merge(self, other: Self) -> None:
        """Add the sentences of another batch behind these."""
        other._widened(self.cumulative.dtype)
        for name in ("lengths", "beams", "tokens", "cumulative", "scores"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))

    def hypotheses(self, sentences: Tensor, backpointers: BackPointers) -> list[list[Hypothesis]]:
        """Read out sentences; this is where hypotheses leave the device.

        Args:
            sentences: ``(k,)`` int64 live sentences.
            backpointers: what was generated.

        Returns:
            The hypotheses of each sentence, best first; those with equal scores in the order of their places.
        """
        lengths, beams = self.lengths[sentences], self.beams[sentences]
        before, totals, weights = backpointers.trace(sentences, beams, (lengths - 1).clamp(min=0))
        last, sums = self.tokens[sentences].cpu(), self.cumulative[sentences].cpu()
        results = []
        rows = zip(lengths.tolist(), self.scores[sentences].tolist(), strict=True)
        for row, (sizes, scores) in enumerate(rows):
            found = []
            for place, (size, score) in enumerate(zip(sizes, scores, strict=True)):
                if size == 0:
                    continue
                tokens = torch.cat([before[row, place, : size - 1], last[row, place : place + 1]])
                reached = torch.cat([totals[row, place, : size - 1].to(sums.dtype), sums[row, place : place + 1]])
                positional = reached.diff(prepend=reached.new_zeros(1))
                attention = None if weights is None else weights[row, place, :size].clone()
                alignment = None if attention is None else attention.argmax(-1)
                found.append(Hypothesis(tokens, score, positional, attention, alignment))
            results.append(sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True))
        return results

    def _widened(self, dtype: torch.dtype) -> None:
        """Convert to the dtype of the scores."""
        if self.cumulative.dtype != dtype:
            self.cumulative, self.scores = self.cumulative.to(dtype), self.scores.to(dtype)

    def _first_active(self, candidates: Candidates, ends: Tensor) -> Candidates:
        """The first ``beam`` candidates that have not ended, in their order."""
        # a stable sort of [no, yes, no, no] by "ends" gives the columns [0, 2, 3, 1]
        columns = ends.to(torch.int8).argsort(dim=1, stable=True)[:, : self.beam]
        chosen = candidates.gather(columns)
        return Candidates(chosen.scores.masked_fill(ends.gather(1, columns), -torch.inf), chosen.tokens, chosen.beams)

    def _place(self, places: Tensor, taken: Tensor, candidates: Candidates, scores: Tensor, step: int | Tensor) -> None:
        """Put the candidates that are ``taken`` into their places, ``(live, K)`` int64 each."""
        # what is not taken goes to a place behind the last, which is cut off again
        index = torch.where(taken, places, self.beam)
        lengths = torch.zeros_like(candidates.tokens) + (step + 1)
        values = (lengths, candidates.beams, candidates.tokens, candidates.scores, scores)
        for name, value in zip(("lengths", "beams", "tokens", "cumulative", "scores"), values, strict=True):
            room = torch.nn.functional.pad(getattr(self, name), (0, 1))
            setattr(self, name, room.scatter(1, index, value)[:, : self.beam])

    def _keep_best(self, candidates: Candidates, scores: Tensor, step: int | Tensor, groups: int = 1) -> None:
        """Keep the best of old and new hypotheses, those of before first among equals.

        Args:
            candidates: ``K`` of each live sentence.
            scores: ``(live, K)`` their scores as hypotheses; ``-inf`` for those that do not finish.
            step: how many tokens they continue.
            groups: parts of equal size, places and candidates alike, of which each keeps its own best.
        """
        new = {
            "lengths": torch.where(scores > -torch.inf, step + 1, torch.zeros_like(candidates.tokens)),
            "beams": candidates.beams,
            "tokens": candidates.tokens,
            "cumulative": candidates.scores,
            "scores": scores,
        }
        merged = {
            name: torch.cat([getattr(self, name).unflatten(1, (groups, -1)), value.unflatten(1, (groups, -1))], dim=-1)
            for name, value in new.items()
        }
        order = merged["scores"].sort(dim=-1, descending=True, stable=True).indices[..., : self.beam // groups]
        for name, values in merged.items():
            setattr(self, name, values.gather(-1, order).flatten(1))


class FirstFinished(FinishedHypotheses):
    """fairseq's rule: the first ``beam`` hypotheses that finish win, whatever the active beams could still reach."""

    def finalize(
        self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None = None
    ) -> Candidates:
        """Finalize candidates that end among the first ``beam``, as long as places are free."""
        self._widened(candidates.scores.dtype)
        among_first = torch.arange(ends.size(1), device=ends.device) < self.beam
        finished = ends & among_first & (candidates.scores > -torch.inf)
        # 3 places of 5 filled, finished [1, 0, 1, 1]: places [3, -, 4, 5], so that the last one comes too late
        places = (self.lengths > 0).sum(1, keepdim=True) + finished.cumsum(1) - 1
        scores = self.ranking.score(candidates.scores, step + 1)
        scores = scores if bonus is None else scores + bonus
        self._place(places, finished & (places < self.beam), candidates, scores, step)
        return self._first_active(candidates, ends)

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """All places are filled, the maximum is reached, or no beam can give one."""
        full = (self.lengths > 0).all(1)
        return full | (max_lengths <= step) | (active.scores == -torch.inf).all(1)


class BestFinished(FinishedHypotheses):
    """Hugging Face's rule: a better hypothesis takes the place of the worst, until none better is to be expected.

    Args:
        sentences: sentences of the batch.
        beam: places for hypotheses of each.
        ranking: how they score.
        device: where the tensors live.
        early_stopping: ``"true"`` ends a sentence when all places are filled; ``"false"`` when the best beam that goes
            on would be worse than the worst place if it ended now; ``"never"`` when it will be worse whatever comes,
            that is, with a positive length penalty, at the maximum length.
    """

    def __init__(
        self, sentences: int, beam: int, ranking: Ranking, device: torch.device, early_stopping: str = "false"
    ):
        super().__init__(sentences, beam, ranking, device)
        self.early_stopping = early_stopping
        self._all_ended = torch.zeros(sentences, dtype=torch.bool, device=device)

    def finalize(
        self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None = None
    ) -> Candidates:
        """Finalize candidates that end among the first ``beam`` and score above the worst place."""
        self._widened(candidates.scores.dtype)
        possible = candidates.scores > -torch.inf
        among_first = torch.arange(ends.size(1), device=ends.device) < self.beam
        finished = ends & among_first & possible
        scores = self.ranking.score(candidates.scores, step + 1)
        scores = (scores if bonus is None else scores + bonus).masked_fill(~finished, -torch.inf)
        self._keep_best(candidates, scores, step)
        self._all_ended = (ends | ~possible).all(1)
        running = candidates.scores.masked_fill(ends, -torch.inf)
        best, columns = running.sort(dim=1, descending=True, stable=True)
        return Candidates(
            best[:, : self.beam],
            candidates.tokens.gather(1, columns[:, : self.beam]),
            candidates.beams.gather(1, columns[:, : self.beam]),
        )

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """See ``early_stopping``; a sentence is done as well when everything has ended."""
        full = (self.lengths > 0).all(1)
        if self.early_stopping == "true":
            return full | self._all_ended
        length = max_lengths + 1 if self.early_stopping == "never" and self.ranking.favours_length else step + 1
        best = self.ranking.score(active.scores[:, 0], length)
        return (full & (best <= self.scores[:, -1])) | self._all_ended

    def select(self, keep: Tensor) -> None:
        """See ``FinishedHypotheses.select``."""
        super().select(keep)
        self._all_ended = self._all_ended.index_select(0, keep)

    def merge(self, other: Self) -> None:
        """See ``FinishedHypotheses.merge``."""
        super().merge(other)
        self._all_ended = torch.cat([self._all_ended, other._all_ended])


class EachRow(FinishedHypotheses):
    """Every beam is a hypothesis of its own, which ends when it ends: greedy search and sampling."""

    def finalize(
        self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None = None
    ) -> Candidates:
        """Finalize each candidate that ends, in its own place; candidate ``i`` continues beam ``i``."""
        self._widened(candidates.scores.dtype)
        finished = ends & (candidates.scores > -torch.inf)
        scores = self.ranking.score(candidates.scores, step + 1)
        scores = scores if bonus is None else scores + bonus
        places = torch.arange(self.beam, device=ends.device).expand_as(ends)
        self._place(places, finished, candidates, scores, step)
        return Candidates(candidates.scores.masked_fill(ends, -torch.inf), candidates.tokens, candidates.beams)

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """No beam is active."""
        return (max_lengths <= step) | (active.scores == -torch.inf).all(1)
