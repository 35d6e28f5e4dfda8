"""Exact search: the outputs with the best scores of all outputs, found by branch and bound.

Stahlberg and Byrne 2019, "On NMT Search Errors and Model Errors: Cat Got Your Tongue?", algorithm 2. A prefix is pruned
when none of its continuations can score better than the worst kept output: log-probabilities are not positive, so that
cumulative scores only fall, and a cumulative score divided by the length penalty is largest at the maximum length, or
at the minimum length if ``length_penalty`` is negative. The time is exponential in the worst case. The results show the
search errors of beam search, and that the most probable output of real models is often empty or very short. ::

    seqgen-generate common.user_dir=examples/papers/exact_search path=runs/a input=test.en generation.search=exact
        generation.max_len=3 generation.nbest=1 generation.beam=1
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqgen.extend import (
    Candidates,
    ConfigError,
    DecodingError,
    DecodingRequest,
    DecodingSetup,
    EachRow,
    Hypothesis,
    Scores,
    Search,
    Session,
    option,
    register_search,
)

_ROUNDING = 1e-4
"""A log-probability may exceed zero by this much, by rounding, before it is an error."""


@dataclass
class Branch:
    """Continuations that are not expanded yet, and the session that has decoded the prefixes that they continue.

    Attributes:
        session: the session, which has scored these continuations.
        candidates: ``(1, K)`` continuations, best first.
        bounds: ``(K,)`` upper bound of the score of any output that begins with each.
        tried: number of candidates that have been expanded or pruned.
    """

    session: Session
    candidates: Candidates
    bounds: Tensor
    tried: int = 0

    def take(self, count: int, least: float) -> Session | None:
        """A session of those of the next ``count`` candidates whose bound exceeds ``least``; ``None`` without any."""
        wanted = self.bounds[self.tried : self.tried + count] > least
        columns = wanted.nonzero().T + self.tried
        self.tried += count
        return self.resumed(self.candidates.gather(columns).padded(count)) if columns.numel() else None

    def resumed(self, active: Candidates) -> Session:
        """A session whose beams have read some of the candidates, ``(1, beam)``."""
        session = self.session.fork()
        session.advance(active)
        return session


class ExactSession:
    """Searches the sentences of a batch, one after the other.

    The search is depth-first: the best of the newest continuations are expanded first, ``at_once`` of them together,
    and older ones only when none of these is left. So outputs are found early, which prunes many prefixes, and few
    decoder states are kept.

    Args:
        setup: see ``Session``; its search is an ``ExactSearch``.
        request: see ``Session``.
    """

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        if setup.observers:
            names = ", ".join(type(observer).__name__ for observer in setup.observers)
            raise ConfigError(
                "exact search knows an output only when it is complete, so that it cannot be streamed and has no steps "
                f"that an observer ({names}) could see; remove it, or use another search"
            )
        assert isinstance(setup.search, ExactSearch)
        self.setup, self.wanted, self.expansions = setup, setup.beam_size, setup.search.expansions
        self.beam = setup.search.at_once
        self.whole = Session(setup, request, self.beam)

    def run(self) -> list[list[Hypothesis]]:
        """Search sentence by sentence until no prefix can lead to a better output.

        Raises:
            DecodingError: a sentence needs too many expansions, or a score rises, so that there is no bound.
        """
        results = []
        for row in range(len(self.whole.live)):
            found = self.find(self.begin(row))
            results.append([replace(hypothesis, timed_out=self.timed_out) for hypothesis in found])
        return results

    def begin(self, row: int) -> Session:
        """A session of one sentence of the batch that has not decoded a step."""
        self.row, self.timed_out, self.expanded = row, False, 0
        self.found: list[Hypothesis] = []
        rows = torch.tensor([row], device=self.whole.live.device)
        session = self.whole.fork(rows)
        session.live = rows  # so that errors name the sentence of the batch
        session.scores[:, 1:] = -torch.inf  # at the first step all beams are equal
        self.longest = int(session.sentences.max_lengths)
        return session

    def find(self, session: Session) -> list[Hypothesis]:
        """The hypotheses of the sentence."""
        branches = self.expand(session)
        while branches and not self.timed_out:
            taken = branches[-1].take(self.beam, self.least())
            if taken is None:
                branches.pop()
            else:
                branches += self.expand(taken)
        return self.found

    def least(self) -> float:
        """The score that an output must exceed to be kept."""
        return self.found[-1].score if len(self.found) == self.wanted else -torch.inf

    def expand(self, session: Session) -> list[Branch]:
        """Score all continuations of the beams: keep those that end; the others are a new branch, if there are any."""
        step = session.backpointers.length
        self.expanded += int((session.scores > -torch.inf).sum())
        if self.expanded > self.expansions:
            raise DecodingError(
                f"exact search of sentence {self.row} of the batch has scored {self.expansions} prefixes "
                "and would need more; raise search.expansions, lower generation.max_len, "
                "or choose beam search"
            )
        context, scores = session.score(step)
        candidates = self.continuations(session, scores, step)
        session.record(context, scores)
        ends = session.ended(candidates, context)[0]
        self.timed_out = session.timed_out is not None
        if self.timed_out and self.found:
            return []  # outputs that the time limit cuts off are kept only if there are no others
        self.keep(session, _columns(candidates, ends), step)
        active = _columns(candidates, ~ends)
        if step == self.longest or not active.scores.numel():
            return []
        return [Branch(session, active, self.bounds(active.scores[0], step + 2))]

    def continuations(self, session: Session, scored: Scores, step: int) -> Candidates:
        """All continuations whose bound exceeds ``least``, by falling cumulative score: ``(1, K)``."""
        lprobs, scores = scored.lprobs(), scored.beams
        vocab = lprobs.size(-1)
        totals = (scores.unsqueeze(-1) + lprobs)[0]  # (beam, V)
        totals = totals.masked_fill((scores[0] == -torch.inf).unsqueeze(1), -torch.inf)
        session.update_done(Candidates(totals.view(1, -1), totals, totals), step)  # raises where one is NaN
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

    def keep(self, session: Session, ended: Candidates, step: int) -> None:
        """Add candidates that have ended to the kept outputs if they are among the best."""
        size = ended.scores.size(1)
        if size == 0:
            return
        bonus = session.coverage.penalty(ended, session.sentences.src_padding)
        if bonus is None:  # they are sorted by score already
            ended = ended.gather(torch.arange(min(size, self.wanted), device=ended.tokens.device).unsqueeze(0))
        finished = EachRow(replace(session.sentences, beam_size=ended.scores.size(1)), self.setup.ranking)
        finished.finalize(ended, torch.ones_like(ended.tokens, dtype=torch.bool), step, bonus)
        first = torch.zeros(1, dtype=torch.int64, device=ended.tokens.device)
        self.found += finished.hypotheses(first, session.backpointers)[0]
        self.found = sorted(self.found, key=lambda hypothesis: hypothesis.score, reverse=True)[: self.wanted]


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
