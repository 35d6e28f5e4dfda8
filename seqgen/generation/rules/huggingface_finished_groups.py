"""Finished hypotheses of Hugging Face's diverse and constrained beam search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates
from seqgen.generation.finished import FinishedHypotheses, Ranking


class GroupedHypotheses(FinishedHypotheses):
    """Finished hypotheses of each group of beams; each group is done by itself.

    As in ``BestFinished``, a better hypothesis replaces the worst one of its group. The condition for a group to be
    done differs: it compares the worst finished hypothesis with the best candidate of the step, even if that candidate
    has just ended. At the maximum length, the active beams of groups that this condition has closed are not finalized.

    Beams, finished hypotheses and candidates are in the order of the groups: of two groups of two beams, beams 0 and 1
    are the first group.

    Args:
        sentences: number of sentences of the batch.
        beam: finished hypotheses of each sentence.
        ranking: how they are scored.
        device: device of the tensors.
        early_stopping: see ``BestFinished``.
        end_tokens: ids that end an output.
        groups: number of groups.
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
        """``(live, groups)`` bool, which groups are done."""
        self._best = torch.full((sentences, groups), -torch.inf, device=device)

    def finalize(
        self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None = None
    ) -> Candidates:
        """Finalize the first candidates of each group that end; at the maximum length, also active beams."""
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
        """Which candidates may be finalized, ``(live, K)`` bool: those that are not forbidden."""
        return candidates.scores > -torch.inf

    def choose(self, candidates: Candidates, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the candidates that continue: the first ones of each group that have not ended.

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
        """Which groups are full and cannot improve by a candidate of ``length`` tokens: ``(live, groups)`` bool."""
        full: Tensor = (self.lengths > 0).unflatten(1, (self.groups, -1)).all(-1)
        if self.early_stopping == "true":
            return full
        worst: Tensor = self.scores.unflatten(1, (self.groups, -1))[..., -1]
        return full & (self.ranking.score(self._best, length) <= worst)

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """Whether all groups are done, the maximum length is reached, or no beam is active."""
        latest = self.early_stopping == "never" and self.ranking.favours_length
        self.group_done |= self._content((max_lengths + 1).unsqueeze(1) if latest else step + 1)
        return self.group_done.all(1) | (max_lengths <= step) | (active.scores == -torch.inf).all(1)

    def select(self, keep: Tensor) -> None:
        """See ``FinishedHypotheses.select``."""
        super().select(keep)
        self.group_done = self.group_done.index_select(0, keep)
