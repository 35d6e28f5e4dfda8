"""Diverse and constrained beam search by Hugging Face's rules, and their finished hypotheses."""

from __future__ import annotations

import torch
from torch import Tensor

from seqgen.core.candidates import Candidates, best_continuations
from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.finished import FinishedHypotheses, Ranking
from seqgen.core.scores import Scores
from seqgen.decoding.search.constrained import (
    NONE,
    ConstrainedBatch,
    ConstrainedSearch,
    OneAtATime,
    Progress,
    continuations,
    repeated,
    take_turns,
)
from seqgen.decoding.search.diverse import DiverseBeamSearch


class GroupedHypotheses(FinishedHypotheses):
    """Finished hypotheses of each group of beams; each group is done by itself.

    As in ``BestFinished``, a better hypothesis replaces the worst one of its group. The condition for a group to be
    done differs: it compares the worst finished hypothesis with the best candidate of the step, even if that candidate
    has just ended. At the maximum length, the active beams of groups that this condition has closed are not finalized.

    Beams, finished hypotheses and candidates are in the order of the groups: of two groups of two beams, beams 0 and 1
    are the first group.

    Args:
        batch: the batch, whose ``beam_size`` is the number of hypotheses of each sentence.
        ranking: how they are scored.
        early_stopping: see ``BestFinished``.
        groups: number of groups.

    Attributes:
        group_done: ``(live, groups)`` bool, which groups are done.
    """

    sentence_state = (*FinishedHypotheses.sentence_state, "group_done")

    def __init__(self, batch: BatchInfo, ranking: Ranking, early_stopping: str, groups: int = 1):
        super().__init__(batch, ranking)
        self.early_stopping = early_stopping
        self.end_tokens = torch.tensor(batch.end_tokens, device=batch.device)
        self.groups = groups
        self._best = torch.full((batch.num_sentences, groups), -torch.inf, device=batch.device)
        self.group_done = torch.zeros_like(self._best, dtype=torch.bool)

    def finalize(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None) -> Candidates:
        """Finalize the first candidates of each group that end; at the maximum length, also active beams."""
        scores = self._ranked(candidates, step, bonus)
        all_end = ends.all(1, keepdim=True)
        ended = torch.where(all_end, torch.isin(candidates.tokens, self.end_tokens), ends)
        ranks = torch.arange(ends.size(1) // self.groups, device=ends.device).repeat(self.groups)
        finished = ended & (ranks < self.beam // self.groups)
        self._keep_best(candidates, scores.masked_fill(~finished, -torch.inf), step, self.groups)
        self._best = candidates.scores.unflatten(1, (self.groups, -1)).amax(-1)
        columns, alive = self.choose(candidates, ended)
        chosen = candidates.gather(columns)
        closed = (self.group_done | self._content(step + 1)).repeat_interleave(self.beam // self.groups, dim=1)
        last = all_end & ~closed & (alive > -torch.inf)
        self._keep_best(chosen, scores.gather(1, columns).masked_fill(~last, -torch.inf), step, self.groups)
        return Candidates(alive.masked_fill(all_end, -torch.inf), chosen.tokens, chosen.beams)

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
        """``(live, groups)`` bool, true for full groups that no candidate of ``length`` tokens improves."""
        full: Tensor = (self.lengths > 0).unflatten(1, (self.groups, -1)).all(-1)
        if self.early_stopping == "true":
            return full
        worst: Tensor = self.scores.unflatten(1, (self.groups, -1))[..., -1]
        return full & (self.ranking.score(self._best, length) <= worst)

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """True if all groups are done, the maximum length is reached, or no beam is active."""
        latest = self.early_stopping == "never" and self.ranking.favours_length
        self.group_done |= self._content((max_lengths + 1).unsqueeze(1) if latest else step + 1)
        return self.group_done.all(1) | super().done(active, step, max_lengths)


class HuggingFaceDiverseBeam(DiverseBeamSearch):
    """Diverse beam search with separate groups of beams (Vijayakumar et al. 2018, section 4).

    The score of a token is lowered by ``strength`` for each beam of an earlier group that continues with it, before the
    logits processors are applied. (In the original, sequence bias comes first; the order of two summands does not
    matter.) Each group has separate beams and finished hypotheses; at the end, the hypotheses of all groups are ranked
    together. A group that is done continues with padding, as in the original, so that later groups avoid padding.

    Args:
        groups: number of groups; the beam size must be a multiple of it.
        strength: the penalty, in nats.
    """

    applies_processors = True

    hypotheses: GroupedHypotheses

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> GroupedHypotheses:
        """See ``Search.finished``."""
        self.hypotheses = GroupedHypotheses(batch, ranking, early_stopping, self.groups)
        return self.hypotheses

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``; the candidates are in the order of the groups."""
        assert context.process is not None
        lprobs, offsets = scores.values, scores.offsets
        size = lprobs.size(1) // self.groups
        used = torch.zeros_like(lprobs[:, 0])  # (sentences, V), beams of earlier groups that continue with each token
        chosen = []
        for group in range(self.groups):
            done = self.hypotheses.group_done[:, group : group + 1]
            # at the first step all beams of a group are equal
            rows = slice(group * size, group * size + (size if context.step else 1))
            penalized = lprobs.clone()  # processors work in place
            penalized[:, rows] -= self.strength * used.unsqueeze(1)
            processed = context.process(penalized)[:, rows]
            found = best_continuations(processed, offsets[:, rows], self.candidates_per_beam * size, scores.in_blocks)
            ends = torch.isin(found.tokens, self.hypotheses.end_tokens)
            active = found.tokens.gather(1, ends.to(torch.int8).argsort(dim=1, stable=True)[:, :size])
            written = active.masked_fill(done, context.pad)
            used.scatter_add_(1, written, torch.ones_like(written, dtype=used.dtype))
            # with groups of 3, beams 0 and 1 of group 2 are beams 6 and 7 of the sentence
            alive = found.scores.masked_fill(done, -torch.inf)
            chosen.append(Candidates(alive, found.tokens, found.beams + group * size))
        return Candidates.joined(chosen)


class _AllocatedBatch(ConstrainedBatch):
    """The search over one batch by Hugging Face's rules."""

    constraints_class = OneAtATime

    newest: Progress
    """Progress of the candidates of the newest step."""

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """See ``Search.finished``."""
        return _AllocatedHypotheses(batch, ranking, early_stopping, self)

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``; candidates that match a further token follow the best candidates."""
        beam = scores.beams.size(1) if context.step else 1  # at the first step all beams are equal
        expanded = scores.of_beams(slice(beam))
        matching = continuations(expanded.totals(), self.constraints.next_tokens(self.progress)[:, :beam])
        candidates = Candidates.joined([expanded.best(self.batch.num_candidates), matching])
        self.newest = self.reached(candidates)
        return candidates


class _AllocatedHypotheses(GroupedHypotheses):
    """The finished hypotheses of a constrained beam search, which also divide the beam among the banks."""

    def __init__(self, batch: BatchInfo, ranking: Ranking, early_stopping: str, search: _AllocatedBatch):
        super().__init__(batch, ranking, early_stopping)
        self.search = search

    def _ranked(self, candidates: Candidates, step: int | Tensor, bonus: Tensor | None) -> Tensor:
        """The scores of candidates as hypotheses; ``-inf`` for those that lack a phrase."""
        return super()._ranked(candidates, step, bonus).masked_fill(~self.search.newest.met.all(-1), -torch.inf)

    def choose(self, candidates: Candidates, ended: Tensor) -> tuple[Tensor, Tensor]:
        """The best of each bank in turn, of beam search's choice and of those that match a further token."""
        plain = self.search.batch.num_candidates
        first = Candidates(*(values[:, :plain] for values in vars(candidates).values()))
        usual, kept = super().choose(first, ended[:, :plain])
        further = torch.arange(plain, ended.size(1), device=ended.device).expand(ended.size(0), -1)
        columns = torch.cat([usual, further], dim=1)
        scores = torch.cat([kept, candidates.scores.masked_fill(ended, -torch.inf)[:, plain:]], dim=1)
        entries = (candidates.tokens * self.beam + candidates.beams).gather(1, columns)
        scores = scores.masked_fill(repeated(entries), -torch.inf)
        banks = self.search.constraints.bank(self.search.newest).gather(1, columns)
        # as in the original, a constraint token counts 100 nats
        order = (banks * 100 + scores).argsort(dim=1, descending=True, stable=True)
        impossible = scores.gather(1, order) == -torch.inf
        turns = take_turns(banks.gather(1, order).masked_fill(impossible, NONE))
        chosen = order.gather(1, turns)[:, : self.beam]
        return columns.gather(1, chosen), scores.gather(1, chosen)


class HuggingFaceConstrainedBeam(ConstrainedSearch):
    """Beam search that divides its beams among banks of hypotheses with equally many constraint tokens.

    The candidates are the beams with which beam search would continue and all continuations that match a further
    constraint token; the beam is filled with the best of each bank in turn. A hypothesis finishes only if it has every
    phrase. The original supports phrases in any order only; in a given order, only the first unmet phrase may begin.
    If no hypothesis has every phrase at the maximum length, the original returns some that lack a phrase; here there
    are none.

    Args:
        ordered: whether phrases must occur in the given order.
    """

    batch_class = _AllocatedBatch
