"""Best-first beam search (Meister, Vieira and Cotterell 2020, "Best-First Beam Search", algorithm 2).

Of all prefixes of a sentence, the one with the best score s is expanded next, whatever its length:

    y = argmax of s(y') over the frontier,    s(y) = sum_t log p(y_t | y_<t, x)

unless k prefixes of its length have been expanded already; the search ends when the k-th output leaves the frontier.
Since s only falls, the first k prefixes of a length that leave the frontier are the beams of beam search, so that the
outputs are the same; prefixes that score below the k-th output are never expanded. This holds for scores without a
length penalty, and for a beam search that ends when no beam can improve its outputs
(``generation.semantics=huggingface``). By fairseq's rule, beam search may end before it finds the best of them.

``seqgen-generate common.user_dir=examples/papers/best_first_beam.py path=runs/a input=test.en generation.beam=5
generation.lenpen=0 generation.search=best_first_beam``

Each step expands the best prefix of every sentence, all in one batch: the rows of these prefixes are taken out of the
sessions that have read them (``fork``) and put together (``merge``). The command prints the number of expansions.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import torch

from seqgen.extend import (
    BeamSearch,
    Candidates,
    ConfigError,
    DecodingError,
    DecodingRequest,
    DecodingSetup,
    Hypothesis,
    Session,
    register_search,
)


class Frontier:
    """The prefixes of a sentence that may be expanded, and its outputs; see the module.

    An entry is ``(-score, number, (length, token, ended, history, session, row))``: the token continues a row of a
    session, after the tokens and scores in ``history``.
    """

    def __init__(self, beam: int, largest: int):
        self.beam, self.largest = beam, largest
        self.heap: list[Any] = []
        self.popped, self.expanded = Counter[int](), Counter[int]()
        self.outputs: list[Any] = []

    def add(self, score: float, number: int, entry: Any) -> None:
        """Add a prefix."""
        if self.popped[entry[0]] < self.largest:
            heapq.heappush(self.heap, (-score, number, entry))

    def pop(self) -> Any:
        """The score and the entry of the prefix to expand next; ``None`` if the sentence is done."""
        while self.heap and len(self.outputs) < self.beam:
            negative, _, (length, token, ended, history, session, row) = heapq.heappop(self.heap)
            history, rank = (*history, (token, -negative)), self.popped[length]
            self.popped[length] += 1
            if ended and rank < self.beam:
                self.outputs.append(history)
            elif not ended and self.expanded[length] < self.beam:
                self.expanded[length] += 1
                return history, session, row
        self.heap.clear()
        return None


class BestFirstSession:
    """Searches a batch; each row of its sessions is a prefix. The arguments are those of ``Session``."""

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        ranking = setup.ranking
        refused = {
            "a length penalty": ranking.normalize and ranking.len_penalty,
            "observers": setup.observers,
            "generation.top_tokens": setup.top_tokens,
            "a streamer": request.streamer,
            "a prefix": request.prefix_tokens is not None,
            "this": replace(setup, search=BeamSearch()).merge_obstacle,
        }
        for what, value in refused.items():
            if value:
                why = f": {value}" if what == "this" else ""
                raise ConfigError(f"best-first beam search cannot have {what}{why}; leave it out, or take search=beam")
        self.setup, self.numbers = setup, 0
        self.session = Session(setup, request, beam=1)
        self.size = self.session.sentences.num_candidates * setup.beam_size
        self.session.search.candidates_per_beam = self.size  # type: ignore[attr-defined]
        self.frontiers = [Frontier(setup.beam_size, self.size) for _ in self.session.live]

    def run(self) -> list[list[Hypothesis]]:
        """Decode all sentences."""
        self.expand(self.session, [(number, ()) for number in range(len(self.frontiers))])
        while taken := [(number, *best) for number, each in enumerate(self.frontiers) if (best := each.pop())]:
            by_session: dict[Any, list[Any]] = defaultdict(list)
            for number, history, session, row in taken:
                by_session[session].append((number, history, row))
            parts = [session.fork(torch.tensor([row for *_, row in rows])) for session, rows in by_session.items()]
            merged, *others = parts
            for other in others:
                merged.merge(other)
            rows = [(number, history) for each in by_session.values() for number, history, _ in each]
            tokens = torch.tensor([[history[-1][0]] for _, history in rows])
            scores = torch.tensor([[history[-1][1]] for _, history in rows], dtype=merged.scores.dtype)
            merged.advance(Candidates(scores, tokens, torch.zeros_like(tokens)))
            self.expand(merged, rows)
        return [[self.hypothesis(output) for output in each.outputs] for each in self.frontiers]

    def expand(self, session: Session, rows: list[Any]) -> None:
        """Add the continuations of all rows, the sentence and the history of each given, to the frontiers."""
        self.setup.search.expansions += len(rows)  # type: ignore[attr-defined]
        step = session.backpointers.length
        context, scored = session.score(step)
        candidates = session.choose(context, scored)
        session.needs_another_step(candidates, step)  # raises where a score is NaN
        values = (candidates.scores, candidates.tokens, session.ended(candidates, context))
        for row, ((number, history), *each) in enumerate(zip(rows, *(value.tolist() for value in values), strict=True)):
            for score, token, ended in zip(*each, strict=True):
                if history and score > history[-1][1] + 1e-4:
                    raise DecodingError("best-first beam search needs scores that only fall; take search=beam")
                if score > -torch.inf:
                    self.numbers += 1  # of equal scores, the earlier one is first
                    entry = (len(history), token, ended, history, session, row)
                    self.frontiers[number].add(score, self.numbers, entry)

    def hypothesis(self, history: Any) -> Hypothesis:
        """An output as a hypothesis."""
        tokens, sums = zip(*history, strict=True)
        scores = torch.tensor(sums, dtype=self.session.scores.dtype)
        return Hypothesis(torch.tensor(tokens), sums[-1], scores.diff(prepend=scores.new_zeros(1)))


@register_search("best_first_beam")
class BestFirstBeamSearch(BeamSearch):
    """Beam search that expands prefixes in the order of their scores."""

    session_class = BestFirstSession
    certifiable = False

    def __init__(self) -> None:
        self.expansions = 0
        """Prefixes that were expanded, over all batches."""

    def summary(self) -> str:
        """The number of expansions; see ``Search.summary``."""
        return f"{self.expansions} prefixes were expanded"
