"""Exact search: the outputs that are best of all, by branch and bound."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.errors import ConfigError, DecodingError
from seqgen.generation.backpointers import History
from seqgen.generation.candidates import Candidates
from seqgen.generation.finished import EachRow
from seqgen.generation.search.base import Phrases, Search
from seqgen.generation.session import Decoding, Streamer
from seqgen.incremental_state import IncrementalState
from seqgen.registry import register_search
from seqgen.structures import Batch, Hypothesis, map_tensors

if TYPE_CHECKING:
    from seqgen.generation.sequence_generator import SequenceGenerator

_ROUNDING = 1e-4
"""A log-probability may be above zero by so much without being taken for a reward."""


@dataclass
class ExactSearchConfig:
    """Configuration of exact search."""

    expansions: int = option(100_000, "prefixes of a sentence that may be scored before the search gives up", minimum=1)
    at_once: int = option(16, "prefixes that are scored together", minimum=1)


@register_search("exact", config=ExactSearchConfig)
class ExactSearch(Search):
    """Finds the ``beam`` best of all outputs: no other has a better score (Stahlberg and Byrne 2019, algorithm 2).

    A prefix is given up when nothing that continues it can be better than what has been found: log-probabilities are
    negative, so that sums only fall, and a sum divided by a length is largest at the greatest length, or at the least
    where the length penalty is negative. This needs time that grows exponentially with what the model is unsure of,
    and serves small problems and as a judge of other searches.

    Args:
        expansions: prefixes of a sentence that may be scored; beyond it the search raises an error.
        at_once: prefixes that are scored together.
    """

    def __init__(self, expansions: int = 100_000, at_once: int = 16):
        if expansions < 1 or at_once < 1:
            raise ConfigError(f"expansions={expansions} and at_once={at_once} must be at least 1")
        self.expansions, self.at_once = expansions, at_once

    def decode(
        self,
        generator: SequenceGenerator,
        sample: Batch,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
        streamer: Streamer | None = None,
    ) -> list[list[Hypothesis]]:
        """Search sentence by sentence; see ``Procedure``.

        Raises:
            ConfigError: there is a streamer.
            DecodingError: a sentence needs too many expansions, or a score rises, so that there is no bound.
        """
        if streamer is not None:
            raise ConfigError("exact search knows no token of an output before it knows all; it cannot be streamed")
        results: list[list[Hypothesis]] = []
        for row in range(sample.num_sentences):
            prefix = None if prefix_tokens is None else prefix_tokens[row : row + 1]
            results += ExactDecoding(self, generator, sample, row, prefix, constraints).run()
        return results


@dataclass
class Branch:
    """Continuations that wait to be tried, and what the beams had come to that they continue.

    Attributes:
        candidates: ``(1, K)`` continuations, best first.
        bounds: ``(K,)`` the best score that each may lead to.
        history: what the beams have written.
        states: the decoding state of each member.
        coverage: see ``Decoding``.
        attention: at the newest token, likewise.
        tried: how many of the candidates have been.
    """

    candidates: Candidates
    bounds: Tensor
    history: History
    states: list[IncrementalState | None]
    coverage: Tensor | None
    attention: Tensor | None
    tried: int = 0

    def take(self, count: int, least: float) -> Candidates | None:
        """The next ``count`` candidates that may lead to more than ``least``; ``None`` where there is none."""
        wanted = self.bounds[self.tried : self.tried + count] > least
        columns = wanted.nonzero().T + self.tried
        self.tried += count
        return self.candidates.gather(columns).padded(count) if columns.numel() else None


class ExactDecoding(Decoding):
    """One sentence that is being searched.

    The search goes into the depth: of the newest continuations the best are tried first, several at once, and others
    only when nothing is left of these. So the first outputs are found as a beam search finds them, and what waits
    takes little memory.

    Args:
        exact: the strategy.
        generator: see ``Decoding``.
        sample: the whole batch.
        row: which sentence of it.
        prefix_tokens: ``(1, P)`` int64 or ``None``, that of the sentence.
        constraints: see ``Decoding``.
    """

    def __init__(
        self,
        exact: ExactSearch,
        generator: SequenceGenerator,
        sample: Batch,
        row: int,
        prefix_tokens: Tensor | None,
        constraints: Sequence[Phrases] | None,
    ):
        sentence: Batch = map_tensors(sample, lambda tensor: tensor[row : row + 1])
        super().__init__(generator, sentence, prefix_tokens, constraints, beam=exact.at_once)
        self.ids, self.sentences = sample.ids.to(self.ids.device), self.sentences + row
        self.wanted, self.expansions = generator.beam_size, exact.expansions
        self.expanded = 0
        self.longest = int(self.max_lengths[0])
        self.scores[:, 1:] = -torch.inf  # at first all beams are the same
        self.branches: list[Branch] = []
        self.found: list[Hypothesis] = []

    def run(self) -> list[list[Hypothesis]]:
        """Search until nothing better is left.

        Returns:
            The hypotheses of the one sentence.

        Raises:
            DecodingError: see ``ExactSearch.decode``.
        """
        self.expand()
        while self.branches:
            branch = self.branches[-1]
            going_on = branch.take(self.beam, self.least())
            if going_on is None:
                self.branches.pop()
            else:
                self.resume(branch)
                self.advance(going_on, branch.attention)
                self.expand()
        return [self.found]

    def least(self) -> float:
        """The score that an output must exceed to be wanted."""
        return self.found[-1].score if len(self.found) == self.wanted else -torch.inf

    def expand(self) -> None:
        """Score all continuations of the beams: keep what ends, and remember what may still become better."""
        step = self.history.length
        self.expanded += int((self.scores > -torch.inf).sum())
        if self.expanded > self.expansions:
            raise DecodingError(
                f"exact search of sentence {int(self.sentences[0])} of the batch has scored {self.expansions} prefixes "
                "and would need more; allow more (ExactSearch(expansions=...)) or fewer tokens (generation.max_len), "
                "or take beam search"
            )
        lprobs, scores, attention = self.next_scores(step)
        candidates = self.continuations(lprobs, scores, step)
        self.history.attend(attention)
        ends = self.ends(candidates, step)[0]
        self.keep(_columns(candidates, ends), step, attention)
        going_on = _columns(candidates, ~ends)
        if step < self.longest and going_on.scores.numel():
            states = [member.state for member in [*self.members, *self.guides]]
            bounds = self.bounds(going_on.scores[0], step + 2)
            self.branches.append(Branch(going_on, bounds, self.history, states, self.coverage, attention))

    def continuations(self, lprobs: Tensor, scores: Tensor, step: int) -> Candidates:
        """All continuations that may be wanted, those with the largest sum first: ``(1, K)``."""
        vocab = lprobs.size(-1)
        totals = (scores.unsqueeze(-1) + lprobs)[0]  # (beam, V)
        totals = totals.masked_fill((scores[0] == -torch.inf).unsqueeze(1), -torch.inf)
        self.goes_on(Candidates(totals.view(1, -1), totals, totals), step)  # raises where one is NaN
        if bool((totals > scores[0].unsqueeze(1) + _ROUNDING).any()):
            raise DecodingError(
                f"exact search needs scores that only fall, and one rises at step {step} in sentence "
                f"{int(self.sentences[0])} of the batch; take away what rewards tokens (such as unkpen below 0, "
                "sequence_bias, exponential_decay_factor), or take beam search"
            )
        sums = totals.flatten()
        entries = (self.bounds(sums, step + 1) > self.least()).nonzero().squeeze(1)
        sums, order = sums[entries].sort(descending=True, stable=True)
        entries = entries[order].unsqueeze(0)
        # (beam, V) -> (beam * V,): entry 2 * V + 7 is token 7 after beam 2
        return Candidates(sums.unsqueeze(0), entries % vocab, entries // vocab)

    def bounds(self, sums: Tensor, shortest: int) -> Tensor:
        """The largest score that outputs of at least ``shortest`` tokens can have when they begin with such a sum."""
        ranking = self.generator.ranking
        return torch.maximum(ranking.score(sums, shortest), ranking.score(sums, max(shortest, self.longest + 1)))

    def keep(self, ended: Candidates, step: int, attention: Tensor | None) -> None:
        """Put those that have ended among the best, if they are."""
        size = ended.scores.size(1)
        if size == 0:
            return
        bonus = self.coverage_penalty(ended, attention)
        if bonus is None:  # then they rank as they stand
            ended = ended.gather(torch.arange(min(size, self.wanted), device=ended.tokens.device).unsqueeze(0))
        finished = EachRow(1, ended.scores.size(1), self.generator.ranking, ended.tokens.device)
        finished.take(ended, torch.ones_like(ended.tokens, dtype=torch.bool), step, bonus)
        first = torch.zeros(1, dtype=torch.int64, device=ended.tokens.device)
        self.found += finished.hypotheses(first, self.history)[0]
        self.found = sorted(self.found, key=lambda hypothesis: hypothesis.score, reverse=True)[: self.wanted]

    def resume(self, branch: Branch) -> None:
        """Go back to where a branch began; what is written from now on does not touch it."""
        self.history = copy.deepcopy(branch.history)
        self.coverage = branch.coverage
        for member, state in zip([*self.members, *self.guides], branch.states, strict=True):
            member.state = copy.deepcopy(state)


def _columns(candidates: Candidates, wanted: Tensor) -> Candidates:
    """The candidates ``(1, K)`` at which ``wanted``, ``(K,)`` bool, is true."""
    return candidates.gather(wanted.nonzero().T)
