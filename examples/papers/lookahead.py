"""Lookahead (Lu, Welleck, West et al. 2022, "NeuroLogic A*esque Decoding", section 2.2).

A beam is chosen by its score and by an estimate of what can still be reached from it, here the greedy continuation of
``depth`` tokens, which ends earlier at end-of-sentence:

    choose the candidates y with the largest    s(y) + weight h(y),    h(y) = log p(greedy continuation of y | y, x)

The scores of outputs remain the sums s. With ``depth=0`` or ``weight=0`` this is beam search.

``seqgen-generate common.user_dir=examples/papers/lookahead.py path=runs/a input=test.en generation.search=lookahead
search.depth=2 search.weight=0.5``

For each of the best ``2 * beam`` candidates, the session is forked (``Session.fork``), reads the candidates and
continues greedily, so that a step costs about ``2 * depth`` further steps. Expect shorter outputs.
Another estimate, such as a classifier of
the continuation, takes the place of ``LookaheadSession.estimate``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import (
    BeamSearch,
    Candidates,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    Scores,
    Session,
    StepContext,
    option,
    register_search,
)


class LookaheadSession(Session):
    """Chooses candidates by their scores and estimates; see ``Session``."""

    search: Lookahead

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        if setup.observers or setup.stopping:
            raise ConfigError("search=lookahead takes no observers, stopping rules and streamers; remove them")
        super().__init__(setup, request)

    def choose(self, context: StepContext, scores: Scores) -> Candidates:
        """The candidates of beam search, in another order; see ``Session.choose``."""
        found = super().choose(context, scores)
        if not self.search.depth:
            return found
        ended = self.ended(found, context)
        values = found.scores + self.search.weight * self.estimates(found, ended)
        values = values.masked_fill(found.scores == -torch.inf, -torch.inf)
        return found.gather(values.argsort(dim=1, descending=True, stable=True))

    def estimates(self, found: Candidates, ended: Tensor) -> Tensor:
        """The estimate of each candidate, ``(live, K)``: 0 for those that have ended."""
        parts = [
            self.estimate(Candidates(*(each[:, first : first + self.beam] for each in values)))
            for first in range(0, found.scores.size(1), self.beam)
            if (values := (found.scores.masked_fill(ended, -torch.inf), found.tokens, found.beams))
        ]
        return torch.cat(parts, dim=1)

    def estimate(self, candidates: Candidates) -> Tensor:
        """The estimate h of some candidates, ``(live, beam)``; 0 for those with score ``-inf``.

        Args:
            candidates: at most ``beam`` of each live sentence.
        """
        size = candidates.scores.size(1)
        ahead = Session.fork(self)
        ahead.advance(candidates.padded(self.beam))
        total = torch.zeros_like(ahead.scores)
        running = ahead.scores > -torch.inf
        for _ in range(self.search.depth):
            step = ahead.backpointers.length
            if step > int(self.sentences.max_lengths.max()) or not bool(running.any()):
                break
            context, scores = ahead.score(step)
            newest = scores.best_of_each()
            gains = newest.scores - ahead.scores
            total = torch.where(running & (gains > -torch.inf), total + gains, total)
            running = running & ~ahead.ended(newest, context)
            ahead.advance(newest)
        return total[:, :size]


@dataclass
class LookaheadConfig:
    """Configuration of lookahead; its fields are the keys ``search.FIELD``."""

    depth: int = option(2, "tokens of the greedy continuation", minimum=0)
    weight: float = option(0.5, "weight of the estimate", minimum=0)


@register_search("lookahead", config=LookaheadConfig)
class Lookahead(BeamSearch):
    """Beam search that looks ahead; see ``LookaheadConfig``."""

    session_class = LookaheadSession
    certifiable = False

    def __init__(self, depth: int = 2, weight: float = 0.5):
        self.depth, self.weight = depth, weight
