"""Observers: told at every step what happens to each candidate. They never change the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates
from seqgen.generation.component import Component
from seqgen.generation.context import StepContext
from seqgen.generation.finished import FinishedHypotheses
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.structures import Hypothesis

FORBIDDEN = "forbidden"
"""A need of observers: which of the most probable tokens a processor forbade."""


class Outcome(IntEnum):
    """What became of a candidate."""

    CONTINUES = 0
    """It is a beam of the next step."""
    FINISHED = 1
    """It is now a finished hypothesis."""
    BELOW_BEAM = 2
    """Enough better candidates continue."""
    ENDED_TOO_LOW = 3
    """It ended, but ranks too low to be finalized, or no place is left for it."""
    IMPOSSIBLE = 4
    """Its score is ``-inf``: processors forbade it, or fewer continuations exist."""
    SENTENCE_DONE = 5
    """The sentence needed no further hypotheses."""


@dataclass(frozen=True)
class Forbidden:
    """The most probable next tokens of each row before the processors, and who forbade them.

    Attributes:
        tokens: ``(rows, k)`` int64, best first.
        lprobs: ``(rows, k)`` their scores before the processors.
        by: ``(rows, k)`` int64, index in ``processors`` of the first one that forbade the token; -1 for none.
        processors: class names of the processors.
    """

    tokens: Tensor
    lprobs: Tensor
    by: Tensor
    processors: Sequence[str]


@dataclass(frozen=True)
class Places:
    """The finished hypotheses of each sentence at one time: ``(live, beam)`` each."""

    lengths: Tensor
    beams: Tensor
    tokens: Tensor
    scores: Tensor

    @classmethod
    def of(cls, finished: FinishedHypotheses) -> Places:
        """Copies, since some rules write in place."""
        values = (finished.lengths, finished.beams, finished.tokens, finished.scores)
        return cls(*(value.clone() for value in values))

    def lacks(self, other: Places) -> Tensor:
        """Which hypotheses of ``other`` are not among these: ``(live, beam)`` bool."""
        same = torch.ones(*self.lengths.shape, other.lengths.size(1), dtype=torch.bool, device=self.lengths.device)
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            same = same & (mine.unsqueeze(2) == theirs.unsqueeze(1))
        return (other.lengths > 0) & ~same.any(1)


@dataclass(frozen=True)
class StepRecord:
    """One step, after the search has chosen.

    Attributes:
        context: the step.
        candidates: ``K`` of each live sentence, in the order in which they are preferred.
        ended: ``(live, K)`` bool, which of them end.
        active: the ``beam`` candidates of each sentence that continue.
        was_done: ``(live,)`` bool, which sentences were done before the step.
        now_done: ``(live,)`` bool, which are done after it.
        before: the finished hypotheses before the step.
        after: those after it.
        forbidden: see ``Forbidden``; ``None`` unless an observer declares the need.
    """

    context: StepContext
    candidates: Candidates
    ended: Tensor
    active: Candidates
    was_done: Tensor
    now_done: Tensor
    before: Places
    after: Places
    forbidden: Forbidden | None = None

    @cached_property
    def outcomes(self) -> Tensor:
        """What became of each candidate: ``(live, K)`` int64, values of ``Outcome``."""
        c, active = self.candidates, self.active
        possible = c.scores > -torch.inf
        alive = (active.scores > -torch.inf).unsqueeze(1)
        continues = _same(c, active.beams, active.tokens, alive).any(2) & ~self.ended
        newly = self.before.lacks(self.after).unsqueeze(1)
        finished = _same(c, self.after.beams, self.after.tokens, newly).any(2) & self.ended & possible
        outcome = torch.full_like(c.tokens, Outcome.BELOW_BEAM)
        outcome[self.ended] = Outcome.ENDED_TOO_LOW
        outcome[~possible] = Outcome.IMPOSSIBLE
        outcome[continues] = Outcome.CONTINUES
        outcome[finished] = Outcome.FINISHED
        outcome[self.was_done] = Outcome.SENTENCE_DONE
        return outcome

    @cached_property
    def replaced(self) -> Tensor:
        """Which hypotheses of ``before`` lost their place to better ones in this step: ``(live, beam)`` bool."""
        return self.after.lacks(self.before) & ~self.was_done.unsqueeze(1)


class Observer(Component):
    """Is told of every step; a subclass implements ``observe``, and ``end`` where it wants to know the results.

    One that is registered with ``@register_observer`` can be chosen by name (``generation.observers``).
    """

    def observe(self, record: StepRecord) -> None:
        """Look at a step; nothing that is changed here has an effect.

        Args:
            record: the step.
        """
        raise NotImplementedError

    def end(self, sentence: int, hypotheses: Sequence[Hypothesis]) -> None:
        """Look at the result of a sentence; by default, nothing.

        Args:
            sentence: its number in the batch's ``ids``.
            hypotheses: best first.
        """


@dataclass
class ForbiddenWatch:
    """Notes which processor first forbids each of the most probable tokens; ``StepContext.watch`` calls it."""

    lprobs: Tensor
    count: int
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.best, self.tokens = self.lprobs.topk(min(self.count, self.lprobs.size(1)), dim=1)
        self.best, self.by = self.best.clone(), torch.full_like(self.tokens, -1)

    def __call__(self, processor: LogitsProcessor, lprobs: Tensor) -> None:
        """Look at the scores that a processor left, ``(rows, V)``."""
        self.names.append(type(processor).__name__)
        forbidden = (lprobs.gather(1, self.tokens) == -torch.inf) & (self.best > -torch.inf)
        self.by[forbidden & (self.by < 0)] = len(self.names) - 1
        self.by[~forbidden] = -1  # a prefix overrules the processors before it

    @property
    def result(self) -> Forbidden:
        """What was seen."""
        return Forbidden(self.tokens, self.best, self.by, self.names)


Watch = Callable[[LogitsProcessor, Tensor], None]


def _same(candidates: Candidates, beams: Tensor, tokens: Tensor, counts: Tensor) -> Tensor:
    """Which of ``(live, n)`` continuations each candidate is, where they count: ``(live, K, n)`` bool."""
    same = (candidates.beams.unsqueeze(2) == beams.unsqueeze(1)) & (
        candidates.tokens.unsqueeze(2) == tokens.unsqueeze(1)
    )
    return same & counts
