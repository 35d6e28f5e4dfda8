"""Traces of decodes: the candidates of each sentence at every step, and their outcomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from seqgen.generation.component import MEMBER_LOGITS
from seqgen.generation.observers import FORBIDDEN, Observer, Outcome, StepRecord
from seqgen.text.results import TextHypothesis


@dataclass(frozen=True)
class StepTrace:
    """One step of one sentence, with ``K`` candidates in the order in which the search strategy prefers them.

    Attributes:
        done: whether the sentence is done after the step.
        scores: ``(K,)`` cumulative scores in nats.
        tokens: ``(K,)`` int64, the new token of each.
        beams: ``(K,)`` int64, the beam that each continues.
        outcomes: ``(K,)`` int64, values of ``Outcome``.
        hypothesis_scores: ``(K,)`` final scores of the candidates that finished, by which hypotheses are ranked;
            ``-inf`` for the others.
        active_tokens: ``(beam,)`` int64, the newest token of each beam of the next step.
        active_beams: ``(beam,)`` int64, the beam that it continues.
    """

    done: bool
    scores: Tensor
    tokens: Tensor
    beams: Tensor
    outcomes: Tensor
    hypothesis_scores: Tensor
    active_tokens: Tensor
    active_beams: Tensor

    @property
    def survives(self) -> Tensor:
        """Which candidates continue or finish: ``(K,)`` bool."""
        return (self.outcomes == Outcome.CONTINUES) | (self.outcomes == Outcome.FINISHED)


@dataclass(frozen=True)
class LineTrace:
    """The decode of one line.

    Attributes:
        steps: from the first step to the one that finished the sentence. Empty for an empty line, and for a strategy
            whose own loop does not call observers.
        hypotheses: the n-best list.
        joined: the n-best list with continuous batching, for which observers are not called; ``None`` if continuous
            batching is not used.
    """

    steps: Sequence[StepTrace]
    hypotheses: Sequence[TextHypothesis]
    joined: Sequence[TextHypothesis] | None = None

    def history(self, step: int, beam: int) -> list[int]:
        """The tokens of a beam before a step.

        Args:
            step: number of the step.
            beam: number of the beam.

        Returns:
            The generated tokens, oldest first.
        """
        tokens = []
        for earlier in reversed(self.steps[:step]):
            tokens.append(int(earlier.active_tokens[beam]))
            beam = int(earlier.active_beams[beam])
        return tokens[::-1]


class Recorder(Observer):
    """Records the steps of each sentence, on the CPU.

    Attributes:
        steps: the steps of each sentence, by the number of its line.
    """

    def __init__(self) -> None:
        self.steps: dict[int, list[StepTrace]] = defaultdict(list)

    def observe(self, record: StepRecord) -> None:
        """See ``Observer.observe``."""
        c, active = record.candidates, record.active
        values = (c.scores.double(), c.tokens, c.beams, record.outcomes, _hypothesis_scores(record))
        rows = [value.cpu() for value in (*values, active.tokens, active.beams)]
        over, now_done = record.was_done.tolist(), record.now_done.tolist()
        for row, sentence in enumerate(record.context.sentences.ids.tolist()):
            if not over[row]:
                parts = [value[row].clone() for value in rows]
                self.steps[sentence].append(StepTrace(now_done[row], *parts))


@dataclass(frozen=True)
class ModelScores:
    """The members' scores at one step of one sentence, before they are combined and processed.

    Attributes:
        members: for each member ``(beam, V)`` log-probabilities in nats, after the temperature.
        forbidden: by beam and token, the class name of the processor that forbids the token. Only the most probable
            tokens are watched.
    """

    members: Sequence[Tensor]
    forbidden: Mapping[tuple[int, int], str] = field(default_factory=dict)


class Probe(Recorder):
    """A recorder that also keeps the members' log-probabilities at one step of one sentence.

    Args:
        sentence: number of the sentence's line.
        step: number of the step.

    Attributes:
        found: the log-probabilities; ``None`` until the step is observed.
    """

    needs: ClassVar[frozenset[str]] = frozenset({MEMBER_LOGITS, FORBIDDEN})

    def __init__(self, sentence: int, step: int):
        super().__init__()
        self.sentence, self.step = sentence, step
        self.found: ModelScores | None = None

    def observe(self, record: StepRecord) -> None:
        """See ``Observer.observe``."""
        super().observe(record)
        context = record.context
        ids = context.sentences.ids.tolist()
        if context.step != self.step or self.sentence not in ids:
            return
        row = ids.index(self.sentence)
        members = context.outputs.member_logits or []
        scores = [context.by_sentence(logits)[row].double().log_softmax(-1).cpu() for logits in members]
        forbidden: dict[tuple[int, int], str] = {}
        if (watched := record.forbidden) is not None:
            tokens, by = (context.by_sentence(values)[row].tolist() for values in (watched.tokens, watched.by))
            for beam, pairs in enumerate(zip(tokens, by, strict=True)):
                forbidden |= {(beam, t): watched.processors[n] for t, n in zip(*pairs, strict=True) if n >= 0}
        self.found = ModelScores(scores, forbidden)


def _hypothesis_scores(record: StepRecord) -> Tensor:
    """``(live, K)`` final scores of the candidates that finished at this step; ``-inf`` for the others."""
    c, after = record.candidates, record.after
    same = (c.beams.unsqueeze(2) == after.beams.unsqueeze(1)) & (c.tokens.unsqueeze(2) == after.tokens.unsqueeze(1))
    same &= (after.lengths == record.context.step + 1).unsqueeze(1)
    scores = after.scores.double().unsqueeze(1).masked_fill(~same, -torch.inf).amax(2)
    return scores.masked_fill(record.outcomes != Outcome.FINISHED, -torch.inf)
