"""Finished hypotheses by the rule of Hugging Face's older searches: group and constrained beam search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates
from seqgen.generation.finished import FinishedHypotheses, Ranking


class GroupedHypotheses(FinishedHypotheses):
    """Groups of beams with places of their own, each of which is done by itself.

    As in ``BestFinished`` a better hypothesis takes the place of the worst. What differs is when a group is done: the
    question whether a better one is to be expected is asked of the best candidate of a step, also where that has just
    ended; and where everything must end, the beams of a group that is done by this question are no hypotheses.

    Beams, places and candidates stand group by group: of two groups of two beams, beams 0 and 1 are the first.

    Args:
        sentences: sentences of the batch.
        beam: places for hypotheses of each.
        ranking: how they score.
        device: where the tensors live.
        early_stopping: see ``BestFinished``.
        end_tokens: ids that end an output.
        groups: how many groups.
    """

    def __init__(
        self,
        sentences: int,
        beam: int,
        ranking: Ranking,
        device: torch.device,
        early_stopping: str,
        end_tokens: Sequence[int],
        groups: int = 1,
    ):
        super().__init__(sentences, beam, ranking, device)
        self.early_stopping = early_stopping
        self.end_tokens = torch.tensor(end_tokens, device=device)
        self.groups = groups
        self.group_done = torch.zeros(sentences, groups, dtype=torch.bool, device=device)
        """``(live, groups)`` which groups look for no more hypotheses."""
        self._best = torch.full((sentences, groups), -torch.inf, device=device)

    def finalize(
        self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None = None
    ) -> Candidates:
        """Finalize what ends among the first candidates of each group; where all must end, also the others."""
        self._widened(candidates.scores.dtype)
        all_end = ends.all(1, keepdim=True)
        ended = torch.where(all_end, torch.isin(candidates.tokens, self.end_tokens), ends)
        scores = self.ranking.score(candidates.scores, step + 1)
        scores = scores if bonus is None else scores + bonus
        scores = scores.masked_fill(~self.complete(candidates), -torch.inf)
        finished = ended & self.preferred(candidates)
        self._keep_best(candidates, scores.masked_fill(~finished, -torch.inf), step, self.groups)
        self._best = candidates.scores.unflatten(1, (self.groups, -1)).amax(-1)
        columns, alive = self.choose(candidates, ended)
        chosen = candidates.gather(columns)
        closed = (self.group_done | self._content(step + 1)).repeat_interleave(self.beam // self.groups, dim=1)
        last = all_end & ~closed & (alive > -torch.inf)
        self._keep_best(chosen, scores.gather(1, columns).masked_fill(~last, -torch.inf), step, self.groups)
        return Candidates(alive.masked_fill(all_end, -torch.inf), chosen.tokens, chosen.beams)

    def preferred(self, candidates: Candidates) -> Tensor:
        """Which candidates finish a hypothesis if they end: the first of each group, ``(live, K)`` bool."""
        each = candidates.tokens.size(1) // self.groups
        ranks = torch.arange(each, device=candidates.tokens.device).repeat(self.groups)
        return (ranks < self.beam // self.groups).expand_as(candidates.tokens)

    def complete(self, candidates: Candidates) -> Tensor:
        """Which candidates may be hypotheses: ``(live, K)`` bool; those that are possible."""
        return candidates.scores > -torch.inf

    def choose(self, candidates: Candidates, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the candidates that continue: the first of each group that have not ended.

        Args:
            candidates: ``K`` of each live sentence.
            ended: ``(live, K)`` bool.

        Returns:
            Their columns, ``(live, beam)`` int64, and their scores; ``-inf`` where a group has too few.
        """
        # of groups [no, yes, no, no] and [yes, no, no, no] with two beams each: columns [0, 2] and [1, 2] + 4
        grouped = ended.to(torch.int8).unflatten(1, (self.groups, -1))
        first = grouped.argsort(dim=-1, stable=True)[..., : self.beam // self.groups]
        offsets = torch.arange(self.groups, device=ended.device).unsqueeze(1) * grouped.size(-1)
        columns = (first + offsets).flatten(1)
        return columns, candidates.scores.masked_fill(ended, -torch.inf).gather(1, columns)

    def _content(self, length: int | Tensor) -> Tensor:
        """Which groups expect nothing better, their best candidate having ``length`` tokens: ``(live, groups)``."""
        full: Tensor = (self.lengths > 0).unflatten(1, (self.groups, -1)).all(-1)
        if self.early_stopping == "true":
            return full
        worst: Tensor = self.scores.unflatten(1, (self.groups, -1))[..., -1]
        return full & (self.ranking.score(self._best, length) <= worst)

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """All groups are done, or no beam is active."""
        latest = self.early_stopping == "never" and self.ranking.favours_length
        self.group_done |= self._content((max_lengths + 1).unsqueeze(1) if latest else step + 1)
        return self.group_done.all(1) | (max_lengths <= step) | (active.scores == -torch.inf).all(1)

    def select(self, keep: Tensor) -> None:
        """See ``FinishedHypotheses.select``."""
        super().select(keep)
        self.group_done = self.group_done.index_select(0, keep)
