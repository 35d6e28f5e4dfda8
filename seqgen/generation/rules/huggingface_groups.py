"""Diverse beam search by Hugging Face's rules."""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates, best_continuations
from seqgen.generation.component import BatchInfo
from seqgen.generation.context import StepContext
from seqgen.generation.finished import Ranking
from seqgen.generation.rules.huggingface_finished_groups import GroupedHypotheses
from seqgen.generation.search.base import Search
from seqgen.generation.search.diverse import check_groups


class HuggingFaceDiverseBeam(Search):
    """Diverse beam search with separate groups of beams (Vijayakumar et al. 2018, section 4).

    The score of a token is lowered by ``strength`` for each beam of an earlier group that continues with it, before the
    logits processors are applied. (In the original, sequence bias comes first; the order of two summands does not
    matter.) Each group has its own beams and finished hypotheses; at the end, the hypotheses of all groups are ranked
    together. A group that is done continues with padding, as in the original, so that later groups avoid padding.

    Args:
        groups: number of groups; the beam size must be a multiple of it.
        strength: the penalty, in nats.
    """

    additive = True
    adjusts_scores = True
    processes_itself = True

    def __init__(self, groups: int, strength: float):
        self.groups = groups
        self.strength = strength
        self.batch = BatchInfo(0, groups, 0, torch.device("cpu"))
        self.end_tokens = torch.zeros(0, dtype=torch.int64)
        self.hypotheses: GroupedHypotheses | None = None

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Search.begin``."""
        check_groups(batch.beam_size, self.groups)
        search = copy.copy(super().begin(batch))
        search.batch = batch
        search.end_tokens = torch.tensor(batch.end_tokens, device=batch.device)
        return search

    def finished(self, ranking: Ranking, early_stopping: str) -> GroupedHypotheses:
        """See ``Search.finished``."""
        batch = self.batch
        self.hypotheses = GroupedHypotheses(
            batch.num_sentences, batch.beam_size, ranking, batch.device, early_stopping, batch.end_tokens, self.groups
        )
        return self.hypotheses

    def processed(self, context: StepContext, lprobs: Tensor, rows: slice, penalty: Tensor) -> Tensor:
        """The scores of a group after its penalty and the processors: ``(sentences, beams of the group, V)``."""
        assert context.process is not None
        lprobs = lprobs.clone()  # processors work in place
        lprobs[:, rows] -= penalty
        return context.process(lprobs)[:, rows]

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``; the candidates are in the order of the groups."""
        assert self.hypotheses is not None
        size = lprobs.size(1) // self.groups
        used = torch.zeros_like(lprobs[:, 0])  # (sentences, V), beams of earlier groups that continue with each token
        chosen = []
        for group in range(self.groups):
            done = self.hypotheses.group_done[:, group : group + 1]
            # at the first step all beams of a group are equal
            rows = slice(group * size, group * size + (size if context.step else 1))
            penalized = self.processed(context, lprobs, rows, self.strength * used.unsqueeze(1))
            own = best_continuations(penalized, scores[:, rows], self.batch.num_candidates // self.groups)
            ends = torch.isin(own.tokens, self.end_tokens)
            active = own.tokens.gather(1, ends.to(torch.int8).argsort(dim=1, stable=True)[:, :size])
            written = active.masked_fill(done, self.batch.pad)
            used.scatter_add_(1, written, torch.ones_like(written, dtype=used.dtype))
            # with groups of 3, beams 0 and 1 of group 2 are beams 6 and 7 of the sentence
            chosen.append(Candidates(own.scores.masked_fill(done, -torch.inf), own.tokens, own.beams + group * size))
        return Candidates(
            torch.cat([own.scores for own in chosen], dim=1),
            torch.cat([own.tokens for own in chosen], dim=1),
            torch.cat([own.beams for own in chosen], dim=1),
        )
