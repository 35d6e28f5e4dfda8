"""The path of the reference through the search: at which step it left the beam, by how much, and what stayed.

References, and outputs whose attention is wanted, are scored by teacher forcing.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from seqgen.generation.finished import Ranking
from seqgen.generation.observers import Outcome
from seqgen.generation.scorer import ScoredTarget
from seqgen.lab.traces.line_trace import StepTrace
from seqgen.lab.traces.sentence import SentenceTrace
from seqgen.text.input_line import InputLine
from seqgen.text.languages import encode_target
from seqgen.text.results import attend_to_source
from seqgen.text.text_decoding import RESCORED_TOKENS, TextDecoding


class Fate(StrEnum):
    """What became of the reference."""

    FOUND = "found"
    """It is in the n-best list."""
    REPLACED = "replaced"
    """It finished, but is not in the n-best list: better hypotheses took the places."""
    BELOW_BEAM = "below_beam"
    """Better candidates filled the beam."""
    ENDED_TOO_LOW = "ended_too_low"
    """It ended, but its rank was too low to be finalized, or all places were filled."""
    FORBIDDEN = "forbidden"
    """A processor forbade its next token."""
    SENTENCE_DONE = "sentence_done"
    """The sentence was done before the reference ended."""


@dataclass(frozen=True)
class ReferencePath:
    """The reference in the search.

    Attributes:
        fate: what became of it.
        step: the step at which it finished or was dropped.
        rank: its rank in the n-best list, if it was found.
        ranks: the rank of its candidate at each step, up to the last one at which it was a candidate.
        score: its cumulative score at ``step``, in nats; ``None`` if it was forbidden, or is not known.
        worst: rank, at ``step``, of the worst candidate that survived; -1 if it was not dropped.
        gap: how much more that candidate scored; ``None`` if not known. Negative if the reference scored more.
        by: class name of the processor that forbade it; empty if it is not known.
    """

    fate: Fate
    step: int
    rank: int = -1
    ranks: Sequence[int] = ()
    score: float | None = None
    worst: int = -1
    gap: float | None = None
    by: str = ""


def reference_path(sentence: SentenceTrace) -> ReferencePath | None:
    """Follow the reference through the search; ``None`` without a reference or steps.

    Args:
        sentence: the trace of the sentence.
    """
    reference = sentence.reference
    if reference is None or not sentence.steps or not reference.tokens:
        return None
    beam, ranks = 0, list[int]()
    for number, (step, token) in enumerate(zip(sentence.steps, reference.tokens, strict=False)):
        rank = _rank_of(step, beam, token)
        if rank is None:
            return _not_a_candidate(sentence, number, beam, ranks)
        ranks.append(rank)
        score = float(step.scores[rank])
        outcome = Outcome(int(step.outcomes[rank]))
        if outcome is Outcome.FINISHED:
            tokens = sentence.tokens(number, rank)
            places = [place for place, item in enumerate(sentence.hypotheses) if list(item.tokens) == tokens]
            if not places:
                return ReferencePath(Fate.REPLACED, number, -1, ranks, score)
            return ReferencePath(Fate.FOUND, number, places[0], ranks, score)
        if outcome is not Outcome.CONTINUES:
            fate = Fate.ENDED_TOO_LOW if outcome is Outcome.ENDED_TOO_LOW else Fate.BELOW_BEAM
            worst = _worst_survivor(step)
            gap = None if worst < 0 else float(step.scores[worst]) - score
            return ReferencePath(fate, number, -1, ranks, score, worst, gap)
        slots = sentence.survivors[number]
        if step.done or rank not in slots:
            return ReferencePath(Fate.SENTENCE_DONE, number, -1, ranks, score)
        beam = slots.index(rank)
    return ReferencePath(Fate.SENTENCE_DONE, len(ranks) - 1, -1, ranks)


def _rank_of(step: StepTrace, beam: int, token: int) -> int | None:
    """The rank of the candidate that continues a beam with a token; ``None`` if there is none."""
    same = (step.beams == beam) & (step.tokens == token) & (step.outcomes != Outcome.IMPOSSIBLE)
    found = same.nonzero().flatten().tolist()
    return found[0] if found else None


def _worst_survivor(step: StepTrace) -> int:
    """The rank of the candidate with the lowest score that continues or finishes; -1 if there is none."""
    ranks = step.survives.nonzero().flatten().tolist()
    return min(ranks, key=lambda rank: float(step.scores[rank]), default=-1)


def _not_a_candidate(sentence: SentenceTrace, number: int, beam: int, ranks: Sequence[int]) -> ReferencePath:
    """The reference was dropped without being one of the candidates."""
    step, reference = sentence.steps[number], sentence.reference
    assert reference is not None
    token, worst = reference.tokens[number], _worst_survivor(step)
    score: float | None = None
    if number < len(reference.search_scores):
        score = reference.search_scores[number]
    elif reference.scores:
        score = sentence.before(number, beam) + reference.scores[number]
    by = next((item.by for item in step.forbidden if (item.beam, item.token) == (beam, token)), "")
    fate = Fate.FORBIDDEN if by or score == float("-inf") else Fate.BELOW_BEAM
    score = None if score == float("-inf") else score
    gap = None if worst < 0 or score is None else float(step.scores[worst]) - score
    return ReferencePath(fate, number, -1, ranks, score, worst, gap, by)


Wanted = tuple[InputLine, Tensor]
"""An encoded line, and the ids ``(T,)`` of an output."""


def reference_tokens(decoding: TextDecoding, text: str, line: InputLine) -> Tensor:
    """The ids of the reference of a line: ``(T,)`` int64."""
    return encode_target(decoding.task, text, line.languages)


def can_score(decoding: TextDecoding, wanted: Wanted) -> bool:
    """Whether the models have enough positions for an output."""
    line, tokens = wanted
    limits = [member.model.max_positions()[1] for member in decoding.members]
    for member, source in zip(decoding.members, line.sources, strict=False):
        if (room := member.model.max_target_lengths(torch.tensor([len(source)]))) is not None:
            limits.append(int(room[0]))
    return 0 < len(tokens) <= min(limits)


@torch.inference_mode()
def score_outputs(decoding: TextDecoding, outputs: Sequence[Wanted], attention: bool = False) -> list[ScoredTarget]:
    """Score given outputs, without temperature, processors and penalties.

    Args:
        decoding: the prepared decoding.
        outputs: pairs of an encoded line and an output.
        attention: whether attention is computed.

    Returns:
        The scores of each output. Its ``score`` is the one by which it would rank as a hypothesis, without processors.
    """
    scorer = copy.copy(decoding.scorer)
    scorer.need_attention = attention
    cfg, first = decoding.cfg, decoding.models[0]
    ranking = Ranking(not cfg.unnormalized, cfg.lenpen, cfg.length_penalty)
    order = sorted(range(len(outputs)), key=lambda index: len(outputs[index][1]))
    found: dict[int, ScoredTarget] = {}
    while order:
        longest = len(outputs[order[-1]][1])
        rows = order[-max(1, RESCORED_TOKENS // longest) :]
        del order[-len(rows) :]
        batch = decoding.collate(decoding.members, [outputs[row] for row in rows])
        lengths = [len(outputs[row][1]) for row in rows]
        for row, length, scored in zip(rows, lengths, scorer.score(batch, lengths), strict=True):
            width, read = batch.source.src_tokens.size(1), len(outputs[row][0].sources[0])
            own = attend_to_source(scored.hypothesis, width, read, first.left_pad_source)
            score = float(ranking.score(own.positional_scores.sum(), length))
            found[row] = ScoredTarget(dataclasses.replace(own, score=score), scored.member_scores)
    return [found[row] for row in range(len(outputs))]
