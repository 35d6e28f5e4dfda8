"""Traces: what happened to the candidates of every sentence at every step of a decode."""

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
    """One step of one sentence; ``K`` candidates in the order in which they are preferred.

    Attributes:
        done: whether the sentence is done after the step.
        scores: ``(K,)`` cumulative scores in nats.
        tokens: ``(K,)`` int64, the new token of each.
        beams: ``(K,)`` int64, the beam that each continues.
        outcomes: ``(K,)`` int64, values of ``Outcome``.
        hypothesis_scores: ``(K,)`` what each candidate that finished is ranked by; ``-inf`` for the others.
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
    """How one line was decoded.

    Attributes:
        steps: from the first step to the one after which the sentence was done; none for an empty line, and for a
            strategy with a loop of its own that tells observers nothing.
        hypotheses: the n-best list.
        joined: the n-best list under continuous batching, of which observers see no step; ``None`` where it is not in
            use.
    """

    steps: Sequence[StepTrace]
    hypotheses: Sequence[TextHypothesis]
    joined: Sequence[TextHypothesis] | None = None

    def history(self, step: int, beam: int) -> list[int]:
        """The tokens that a beam has before a step."""
        tokens = []
        for earlier in reversed(self.steps[:step]):
            tokens.append(int(earlier.active_tokens[beam]))
            beam = int(earlier.active_beams[beam])
        return tokens[::-1]


class Recorder(Observer):
    """Keeps what happens to each sentence, on the CPU."""

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
    """What the models said at one step of one sentence, before anything changed it.

    Attributes:
        members: for each member ``(beam, V)`` log-probabilities in nats, with the temperature applied.
        forbidden: for a beam and a token, the class of the processor that forbade it; the most probable tokens only.
    """

    members: Sequence[Tensor]
    forbidden: Mapping[tuple[int, int], str] = field(default_factory=dict)


class Probe(Recorder):
    """A recorder that keeps the members' log-probabilities at one step of one sentence.

    Args:
        sentence: number of the line.
        step: the step.
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
    """What each candidate that finished is ranked by: ``(live, K)``; ``-inf`` for the others."""
    c, after = record.candidates, record.after
    same = (c.beams.unsqueeze(2) == after.beams.unsqueeze(1)) & (c.tokens.unsqueeze(2) == after.tokens.unsqueeze(1))
    same &= (after.lengths == record.context.step + 1).unsqueeze(1)
    scores = after.scores.double().unsqueeze(1).masked_fill(~same, -torch.inf).amax(2)
    return scores.masked_fill(record.outcomes != Outcome.FINISHED, -torch.inf)
