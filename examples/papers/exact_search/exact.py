"""Exact search: the outputs with the best scores of all outputs, found by branch and bound.

Stahlberg and Byrne 2019, "On NMT Search Errors and Model Errors: Cat Got Your Tongue?", algorithm 2. A prefix is pruned
when none of its continuations can score better than the worst kept output: log-probabilities are not positive, so that
cumulative scores only fall, and a cumulative score divided by the length penalty is largest at the maximum length, or
at the minimum length if ``lenpen`` is negative. The time is exponential in the worst case. The results show the search
errors of beam search, and that the most probable output of real models is often empty or very short. ::

    seqgen-generate common.user_dir=examples/papers/exact_search path=runs/a input=test.en \
        generation.search=exact generation.max_len=3 generation.beam=1
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seqgen.extend import (
    Batch,
    Candidates,
    ConfigError,
    DecodingError,
    DecodingRequest,
    DecodingSetup,
    EachRow,
    Hypothesis,
    Search,
    Session,
    StepScores,
    map_tensors,
    option,
    register_search,
)

_ROUNDING = 1e-4
"""A log-probability may exceed zero by this much, by rounding, before it is an error."""


@dataclass
class Branch:
    """Continuations that are not expanded yet, and the state of the beams that they continue.

    Attributes:
        candidates: ``(1, K)`` continuations, best first.
        bounds: ``(K,)`` upper bound of the score of any output that begins with each.
        backpointers: what the beams have generated.
        states: the decoding state of each member.
        processors: the logits processors, with their state.
        stopping: the stopping rules, with their state.
        combination: the combination, with its state.
        coverage: the attention that each source position has received.
        tried: number of candidates that have been expanded or pruned.
    """

    candidates: Candidates
    bounds: Tensor
    backpointers: Any
    states: list[Any]
    processors: list[Any]
    stopping: list[Any]
    combination: Any
    coverage: Any
    tried: int = 0

    def take(self, count: int, least: float) -> Candidates | None:
        """The candidates among the next ``count`` whose bound exceeds ``least``; ``None`` if there is none."""
        wanted = self.bounds[self.tried : self.tried + count] > least
        columns = wanted.nonzero().T + self.tried
        self.tried += count
        return self.candidates.gather(columns).padded(count) if columns.numel() else None


class ExactSession(Session):
    """Searches the sentences of a batch, one after the other.

    The search is depth-first: the best of the newest continuations are expanded first, ``at_once`` of them together,
    and older ones only when none of these is left. So outputs are found early, which prunes many prefixes, and few
    decoder states are kept.

    Args:
        setup: see ``Session``; its search is an ``ExactSearch``.
        request: see ``Session``.
    """

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        if request.streamer is not None:
            raise ConfigError("exact search knows an output only when it is complete, so that it cannot be streamed")
        if setup.observers:
            names = ", ".join(type(observer).__name__ for observer in setup.observers)
            raise ConfigError(
                f"exact search has no steps that an observer ({names}) could see; remove it, or use another search"
            )
        self.whole = request
        self.row = 0
        self._begin(setup, 0)

    def _begin(self, setup: DecodingSetup, row: int) -> None:
        """Prepare for one sentence of the batch."""
        assert isinstance(setup.search, ExactSearch)
        whole, exact = self.whole, setup.search
        sentence: Batch = map_tensors(whole.sample, lambda tensor: tensor[row : row + 1])
        texts = whole.sample.texts
        sentence = replace(sentence, texts=None if texts is None else texts[row : row + 1])
        prefix = None if whole.prefix_tokens is None else whole.prefix_tokens[row : row + 1]
        super().__init__(setup, replace(whole, sample=sentence, prefix_tokens=prefix), beam=exact.at_once)
        self.row, self.live = row, self.live + row
        self.wanted, self.expansions = setup.beam_size, exact.expansions
        self.expanded = 0
        self.longest = int(self.sentences.max_lengths[0])
        self.scores[:, 1:] = -torch.inf  # at the first step all beams are equal
        self.branches: list[Branch] = []
        self.found: list[Hypothesis] = []

    def run(self) -> list[list[Hypothesis]]:
        """Search sentence by sentence until no prefix can lead to a better output.

        Raises:
            DecodingError: a sentence needs too many expansions, or a score rises, so that there is no bound.
        """
        results = []
        for row in range(self.whole.sample.num_sentences):
            if row:
                self._begin(self.setup, row)
            results.append(self._search())
        return results

    def _search(self) -> list[Hypothesis]:
        """The hypotheses of the sentence."""
        self.expand()
        while self.step():
            pass
        if self.timed_out is not None:
            self.found = [replace(hypothesis, timed_out=True) for hypothesis in self.found]
        return self.found

    def step(self) -> bool:
        """Expand the best of the newest continuations; false if no prefix is left or the time is over."""
        if not self.branches or self.timed_out is not None:
            return False
        branch = self.branches[-1]
        active = branch.take(self.beam, self.least())
        if active is None:
            self.branches.pop()
        else:
            self.resume(branch)
            self.advance(active)
            self.expand()
        return True

    def least(self) -> float:
        """The score that an output must exceed to be kept."""
        return self.found[-1].score if len(self.found) == self.wanted else -torch.inf

    def expand(self) -> None:
        """Score all continuations of the beams: keep those that end, and put the others into a new branch."""
        step = self.backpointers.length
        self.expanded += int((self.scores > -torch.inf).sum())
        if self.expanded > self.expansions:
            raise DecodingError(
                f"exact search of sentence {self.row} of the batch has scored {self.expansions} prefixes "
                "and would need more; raise search.expansions, lower generation.max_len, "
                "or take beam search"
            )
        context, scored = self.score(step)
        candidates = self.continuations(scored, step)
        self.backpointers.record(attention=scored.attention)
        self.coverage.attend(scored.attention)
        ends = self.ended(candidates, context)[0]
        if self.timed_out is not None and self.found:
            return  # outputs that the time limit cuts off are kept only if there are no others
        self.keep(_columns(candidates, ends), step)
        active = _columns(candidates, ~ends)
        if step < self.longest and active.scores.numel():
            states = [member.state for member in self.members]
            bounds = self.bounds(active.scores[0], step + 2)
            state = (states, self.processors, self.stopping, self.combination, self.coverage)
            self.branches.append(Branch(active, bounds, self.backpointers, *state))

    def continuations(self, scored: StepScores, step: int) -> Candidates:
        """All continuations whose bound exceeds ``least``, by falling cumulative score: ``(1, K)``."""
        lprobs, scores = scored.lprobs, scored.scores
        vocab = lprobs.size(-1)
        totals = (scores.unsqueeze(-1) + lprobs)[0]  # (beam, V)
        totals = totals.masked_fill((scores[0] == -torch.inf).unsqueeze(1), -torch.inf)
        self.needs_another_step(Candidates(totals.view(1, -1), totals, totals), step)  # raises where one is NaN
        if bool((totals > scores[0].unsqueeze(1) + _ROUNDING).any()):
            raise DecodingError(
                f"exact search needs cumulative scores that only fall, and one rises at step {step} in sentence "
                f"{self.row} of the batch; remove what rewards tokens (such as unkpen below 0, sequence_bias, "
                "exponential_decay_factor), or use beam search"
            )
        sums = totals.flatten()
        entries = (self.bounds(sums, step + 1) > self.least()).nonzero().squeeze(1)
        sums, order = sums[entries].sort(descending=True, stable=True)
        entries = entries[order].unsqueeze(0)
        # (beam, V) -> (beam * V,): entry 2 * V + 7 is token 7 after beam 2
        return Candidates(sums.unsqueeze(0), entries % vocab, entries // vocab)

    def bounds(self, sums: Tensor, shortest: int) -> Tensor:
        """Upper bound of the scores of outputs with at least ``shortest`` tokens, from the sums of their prefixes."""
        ranking = self.setup.ranking
        return torch.maximum(ranking.score(sums, shortest), ranking.score(sums, max(shortest, self.longest + 1)))

    def keep(self, ended: Candidates, step: int) -> None:
        """Add candidates that have ended to the kept outputs if they are among the best."""
        size = ended.scores.size(1)
        if size == 0:
            return
        bonus = self.coverage.penalty(ended, self.sentences.src_padding)
        if bonus is None:  # they are sorted by score already
            ended = ended.gather(torch.arange(min(size, self.wanted), device=ended.tokens.device).unsqueeze(0))
        finished = EachRow(replace(self.sentences, beam_size=ended.scores.size(1)), self.setup.ranking)
        finished.finalize(ended, torch.ones_like(ended.tokens, dtype=torch.bool), step, bonus)
        first = torch.zeros(1, dtype=torch.int64, device=ended.tokens.device)
        self.found += finished.hypotheses(first, self.backpointers)[0]
        self.found = sorted(self.found, key=lambda hypothesis: hypothesis.score, reverse=True)[: self.wanted]

    def resume(self, branch: Branch) -> None:
        """Restore the state of a branch; the copies change independently of the branch."""
        self.backpointers = copy.deepcopy(branch.backpointers)
        self.coverage = branch.coverage.fork()
        self.processors = [processor.fork() for processor in branch.processors]
        self.stopping = [rule.fork() for rule in branch.stopping]
        self.combination = branch.combination.fork()
        for member, state in zip(self.members, branch.states, strict=True):
            member.state = copy.deepcopy(state)


@dataclass
class ExactSearchConfig:
    """Configuration of exact search."""

    expansions: int = option(100_000, "maximum number of prefixes of a sentence that are scored", minimum=1)
    at_once: int = option(16, "number of prefixes that are scored in one batch", minimum=1, maximum=65536)


@register_search("exact", config=ExactSearchConfig)
class ExactSearch(Search):
    """Finds the ``beam`` outputs with the best scores of all outputs.

    It has no steps in which beams continue or finish together, so that it refuses observers and streamers.

    Args:
        expansions: maximum number of prefixes of a sentence that are scored; beyond it the search raises an error.
        at_once: number of prefixes that are scored in one batch.
    """

    is_stochastic = False
    session_class = ExactSession
    stops_early = False

    def __init__(self, expansions: int = 100_000, at_once: int = 16):
        self.expansions, self.at_once = expansions, at_once


def _columns(candidates: Candidates, wanted: Tensor) -> Candidates:
    """The candidates ``(1, K)`` at which ``wanted``, ``(K,)`` bool, is true."""
    return candidates.gather(wanted.nonzero().T)
