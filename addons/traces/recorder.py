"""The observer that records the candidates of each sentence at every step, and their outcomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from seqgen.addons.traces.trace import LETTERS, ForbiddenToken, StepTrace
from seqgen.config import TraceConfig
from seqgen.extend import FORBIDDEN, MEMBER_LPROBS, DecodingSetup, Observer, Outcome, StepRecord


class FollowedReference:
    """The reference of a sentence while it is in the beam.

    Args:
        tokens: its ids.

    Attributes:
        scores: its cumulative score at each step, up to the one at which it is dropped.
    """

    def __init__(self, tokens: Sequence[int]):
        self.tokens = tokens
        self.scores: list[float] = []
        self.beam = 0 if tokens else -1

    def follow(self, record: StepRecord, row: int) -> None:
        """Look at one step of the sentence in a row of the batch."""
        step = len(self.scores)
        if self.beam < 0 or step >= len(self.tokens):
            return
        token, active = self.tokens[step], record.active
        self.scores.append(float(record.scores[row, self.beam] + record.lprobs[row, self.beam, token]))
        same = (active.beams[row] == self.beam) & (active.tokens[row] == token) & (active.scores[row] > -torch.inf)
        found = same.nonzero().flatten().tolist()
        self.beam = found[0] if found else -1


class Tracer(Observer):
    """The observer that records what a trace contains: the steps of each sentence, on the CPU.

    Args:
        options: what is recorded.
        setup: the decoding setup.
        reference_of: returns the ids of the reference of a line; empty without one.
    """

    can_merge = True

    def __init__(self, options: TraceConfig, setup: DecodingSetup, reference_of: Callable[[int], Sequence[int]]):
        members = options.members and len(setup.ensemble.members) > 1
        needs = [need for need, wanted in ((MEMBER_LPROBS, members), (FORBIDDEN, options.forbidden)) if wanted]
        # with a shortlist, components see only the scores of its tokens
        self.needs = frozenset(needs if setup.scoring is None else ())  # type: ignore[misc]
        self.reference_of, self.vocab_size = reference_of, setup.vocab_size
        self.references: dict[int, FollowedReference] = {}
        self.limit = options.sentences or None
        self.full = False
        """True if no further line is recorded."""
        self._steps: dict[int, list[StepTrace]] = defaultdict(list)

    def wants(self, sentence: int) -> bool:
        """True if a line is recorded."""
        return not self.full and (self.limit is None or sentence < self.limit)

    def observe(self, record: StepRecord) -> None:
        """See ``Observer.observe``."""
        ids = record.context.sentences.ids.tolist()
        if any(self.wants(sentence) for sentence in ids):
            self._record(record, ids)
            if record.lprobs.size(-1) == self.vocab_size:  # with a shortlist, columns are not tokens
                self._follow(record, ids)

    def _record(self, record: StepRecord, ids: Sequence[int]) -> None:
        """Record a step of each sentence."""
        c, now_done = record.candidates, record.now_done.tolist()
        columns = c.scores.double(), c.tokens, c.beams, record.outcomes, _hypothesis_scores(record)
        scores, tokens, beams, outcomes, final = (column.tolist() for column in columns)
        active = list(zip(record.active.beams.tolist(), record.active.tokens.tolist(), strict=True))
        members, forbidden, over = _member_scores(record), _forbidden(record), record.was_done.tolist()
        for row, sentence in enumerate(ids):
            if over[row]:
                continue
            letters = "".join(LETTERS[outcome] for outcome in outcomes[row])
            step = StepTrace(
                scores=scores[row],
                tokens=tokens[row],
                beams=beams[row],
                outcomes=letters,
                next=next_ranks(letters, zip(beams[row], tokens[row], strict=True), zip(*active[row], strict=True)),
                done=now_done[row],
                finished={rank: score for rank, score in enumerate(final[row]) if score > -torch.inf},
                members=[member[row] for member in members],
                forbidden=forbidden.get(row, ()),
            )
            self._steps[sentence].append(step)

    def _follow(self, record: StepRecord, ids: Sequence[int]) -> None:
        """Record the scores of the references that are still in the beam."""
        done = record.was_done.tolist()
        for row, sentence in enumerate(ids):
            if done[row] or not self.wants(sentence):
                continue
            if sentence not in self.references:
                self.references[sentence] = FollowedReference(self.reference_of(sentence))
            self.references[sentence].follow(record, row)

    def steps(self, sentence: int) -> list[StepTrace]:
        """The steps of the sentence of a line, by the number of the line; none if no step was observed."""
        return self._steps.get(sentence, [])

    def forget(self, sentence: int) -> None:
        """Drop the steps of a sentence."""
        self._steps.pop(sentence, None)
        self.references.pop(sentence, None)


def _hypothesis_scores(record: StepRecord) -> Tensor:
    """``(live, K)`` final scores of the candidates that finished at this step; ``-inf`` for the others."""
    c, after = record.candidates, record.after
    same = (c.beams.unsqueeze(2) == after.beams.unsqueeze(1)) & (c.tokens.unsqueeze(2) == after.tokens.unsqueeze(1))
    context = record.context
    steps = context.by_sentence(context.steps)[:, :1]  # in continuous batching, sentences are at different steps
    same &= (after.lengths == steps + 1).unsqueeze(1)
    scores = after.scores.double().unsqueeze(1).masked_fill(~same, -torch.inf).amax(2)
    return scores.masked_fill(record.outcomes != Outcome.FINISHED, -torch.inf)


def next_ranks(outcomes: str, found: Iterable[tuple[int, int]], active: Iterable[tuple[int, int]]) -> list[int]:
    """The candidates that are the beams of the next step.

    Args:
        outcomes: the letter of each candidate.
        found: the beam that each candidate continues, and its new token.
        active: for each beam of the next step the beam that it continues, and its newest token.

    Returns:
        For each beam of the next step the rank of its candidate; -1 for a beam that does not exist.
    """
    ranks: dict[tuple[int, int], list[int]] = defaultdict(list)  # two groups of beams can have the same continuation
    for rank, (outcome, pair) in enumerate(zip(outcomes, found, strict=True)):
        if outcome == "C":
            ranks[pair].append(rank)
    return [ranks[pair].pop(0) if ranks.get(pair) else -1 for pair in active]


def _member_scores(record: StepRecord) -> list[list[list[float]]]:
    """By member and live sentence the log-probability of each candidate's token; empty if not known."""
    context, c = record.context, record.candidates
    # (rows, V) -> (live, beam, V) -> the score of each candidate's beam and token
    sentences = torch.arange(len(c.beams), device=c.beams.device).unsqueeze(1)
    members = context.outputs.member_lprobs or ()
    return [context.by_sentence(lprobs)[sentences, c.beams, c.tokens].tolist() for lprobs in members]


def _forbidden(record: StepRecord) -> dict[int, list[ForbiddenToken]]:
    """The forbidden tokens of each sentence that would score above its worst surviving candidate, by its row."""
    known, context = record.forbidden, record.context
    if known is None or context.scores is None or not bool((known.by >= 0).any()):
        return {}
    tokens, lprobs, by = (context.by_sentence(values) for values in (known.tokens, known.lprobs, known.by))
    survives = (record.outcomes == Outcome.CONTINUES) | (record.outcomes == Outcome.FINISHED)
    worst = record.candidates.scores.masked_fill(~survives, torch.inf).amin(1)
    worst = worst.masked_fill(worst == torch.inf, -torch.inf)  # none survives
    matters = (by >= 0) & (context.by_sentence(context.scores).unsqueeze(2) + lprobs > worst.view(-1, 1, 1))
    matters &= ~record.was_done.view(-1, 1, 1)
    matters[:, 1:] &= (context.by_sentence(context.steps)[:, :1] > 0).unsqueeze(2)  # at first all beams are equal
    found: dict[int, list[ForbiddenToken]] = defaultdict(list)
    places = matters.nonzero()
    values = zip(places.tolist(), *(value[matters].tolist() for value in (tokens, lprobs, by)), strict=True)
    for (row, beam, _), token, lprob, number in values:
        found[row].append(ForbiddenToken(beam, token, lprob, known.processors[number]))
    return found
