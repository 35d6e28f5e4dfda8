"""Observers: called at every step with what happens to each candidate. They never change the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from seqgen.core.candidates import Candidates, best_continuations, log_sum_exp
from seqgen.core.component import Component
from seqgen.core.context import StepContext
from seqgen.core.contract import Flags
from seqgen.core.finished import FinishedHypotheses
from seqgen.core.processors import LogitsProcessor
from seqgen.core.scores import Scores
from seqgen.core.structures import Hypothesis


class Outcome(IntEnum):
    """The fate of a candidate in a step."""

    CONTINUES = 0
    """It is a beam of the next step."""
    FINISHED = 1
    """It is now a finished hypothesis."""
    BELOW_BEAM = 2
    """It is dropped because ``beam`` better candidates continue."""
    ENDED_TOO_LOW = 3
    """It ended, but its rank is too low to be finalized, or all places are filled."""
    IMPOSSIBLE = 4
    """Its score is ``-inf``: a processor forbids it, or there are fewer continuations than candidates."""
    SENTENCE_DONE = 5
    """It is dropped because its sentence needs no further hypotheses."""


class Forbidden:
    """The most probable next tokens of each row before the processors, and which processor forbids each.

    It is called after each processor, as ``StepContext.watch``.

    Args:
        scores: ``(rows, V)`` scores before the processors.
        count: number of tokens of each row that are watched.
        log_sum: ``(rows, 1)`` log-sum-exp of the scores; computed if not given.

    Attributes:
        tokens: ``(rows, k)`` int64, best first.
        lprobs: ``(rows, k)`` log-probabilities of the tokens before the processors.
        by: ``(rows, k)`` int64, index in ``processors`` of the first one that forbids the token; -1 if none does.
        processors: class names of the processors.
    """

    def __init__(self, scores: Tensor, count: int, log_sum: Tensor | None = None):
        log_sum = log_sum_exp(scores) if log_sum is None else log_sum
        best = best_continuations(scores.unsqueeze(1), torch.zeros_like(log_sum), min(count, scores.size(1)))
        self.lprobs, self.tokens = best.scores - log_sum, best.tokens
        self.by = torch.full_like(self.tokens, -1)
        self.processors: list[str] = []

    def __call__(self, processor: LogitsProcessor, lprobs: Tensor) -> None:
        """Compare the scores after a processor, ``(rows, V)``, with ``-inf``."""
        self.processors.append(type(processor).__name__)
        forbidden = (lprobs.gather(1, self.tokens) == -torch.inf) & (self.lprobs > -torch.inf)
        self.by[forbidden & (self.by < 0)] = len(self.processors) - 1
        self.by[~forbidden] = -1  # a forced prefix may allow what an earlier processor forbade


@dataclass(frozen=True)
class StepRecord:
    """One step, after candidates were chosen and finalized.

    Attributes:
        context: the step context.
        candidates: ``K`` of each live sentence, in the order of the search strategy.
        ended: ``(live, K)`` bool, which of them end.
        active: the ``beam`` candidates of each sentence that continue.
        was_done: ``(live,)`` bool, which sentences were done before the step.
        now_done: ``(live,)`` bool, which sentences are done after the step.
        before: the finished hypotheses before the step.
        after: the finished hypotheses after the step.
        scored: the scores that the search strategy received.
        forbidden: see ``Forbidden``; ``None`` unless an observer declares the need ``FORBIDDEN``.
    """

    context: StepContext
    candidates: Candidates
    ended: Tensor
    active: Candidates
    was_done: Tensor
    now_done: Tensor
    before: FinishedHypotheses
    after: FinishedHypotheses
    scored: Scores
    forbidden: Forbidden | None = None

    @property
    def lprobs(self) -> Tensor:
        """``(live, beam, V)`` what each token adds to the score of its beam, as the search strategy saw it."""
        return self.scored.seen()

    @property
    def scores(self) -> Tensor:
        """``(live, beam)`` the score of each beam; ``scores + lprobs`` is the cumulative score of a continuation."""
        return self.scored.beams

    @cached_property
    def outcomes(self) -> Tensor:
        """The outcome of each candidate: ``(live, K)`` int64, values of ``Outcome``."""
        c = self.candidates
        possible = c.scores > -torch.inf
        continues = c.matches(self.active).any(2) & ~self.ended & possible
        newly = torch.where(_new_in(self.after, self.before), 0.0, -torch.inf)
        finished = c.matches(Candidates(newly, self.after.tokens, self.after.beams)).any(2) & self.ended & possible
        outcome = torch.full_like(c.tokens, Outcome.BELOW_BEAM)
        outcome[self.ended] = Outcome.ENDED_TOO_LOW
        outcome[~possible] = Outcome.IMPOSSIBLE
        outcome[continues] = Outcome.CONTINUES
        outcome[finished] = Outcome.FINISHED
        outcome[self.was_done] = Outcome.SENTENCE_DONE
        return outcome

    @cached_property
    def replaced(self) -> Tensor:
        """``(live, beam)`` bool, true for hypotheses of ``before`` that better ones replaced in this step."""
        return _new_in(self.before, self.after) & ~self.was_done.unsqueeze(1)


class Observer(Component):
    """Is called at every step; a subclass implements ``observe``, ``end`` to see the results, or ``token_fields``.

    An observer registered with ``@register_observer`` is selected by its name (``generation.observers``). It is called
    in every strategy but exact search, which has no steps in which beams continue and refuses observers.

    ``begin`` makes a copy for each batch. What is collected over all batches belongs in a list, dict or file that
    ``__init__`` has made, which all copies share; what belongs to a batch is set on the copy in ``begin``.
    """

    setting = "observers"

    flags: ClassVar[Flags] = {
        "can_merge": ("begin", "observe", "beam_values", "merge", "token_fields"),
        "reads_finished": ("observe",),
    }

    reads_finished: bool = True
    """True if it reads the finished hypotheses of a step, which are then copied before they change."""

    can_merge: bool = False
    """True if it is correct in continuous batching: ``observe`` uses ``context.steps`` of each row instead of
    ``context.step``, reads no source ids, and reads only the last ``context.steps`` columns of ``context.tokens``.
    Otherwise each batch is decoded by itself; the observer is then called in the same way, and decoding is slower."""

    def beam_values(self, context: StepContext, scores: Scores) -> Mapping[str, Tensor]:
        """Values of the next token of each beam, before the search chooses; none by default.

        Args:
            context: the step context.
            scores: what the search receives.

        Returns:
            ``(live, beam, ...)`` by the name of the field of ``Hypothesis`` that lists them for each token.
        """
        return {}

    def observe(self, record: StepRecord) -> None:
        """Look at one step; does nothing by default. The tensors must not be changed.

        Args:
            record: the step.
        """

    def summary(self) -> str:
        """A sentence about the batches decoded so far, which ``seqgen-generate`` prints at the end; by default none."""
        return ""

    def end(self, sentence: int, hypotheses: Sequence[Hypothesis]) -> None:
        """Look at the result of a sentence; does nothing by default.

        Args:
            sentence: number of the sentence in the batch's ``ids``.
            hypotheses: its hypotheses, best first.
        """


def _new_in(one: FinishedHypotheses, other: FinishedHypotheses) -> Tensor:
    """``(live, beam)`` bool, true for hypotheses of ``one`` that are not in ``other``."""
    same = torch.ones(*other.lengths.shape, one.lengths.size(1), dtype=torch.bool, device=one.lengths.device)
    for name in ("lengths", "beams", "tokens", "scores"):
        same = same & (getattr(other, name).unsqueeze(2) == getattr(one, name).unsqueeze(1))
    return (one.lengths > 0) & ~same.any(1)
