"""Best-first beam search (Meister, Vieira and Cotterell 2020, "Best-First Beam Search", algorithm 2).

Of all prefixes of a sentence, the one with the best score s is expanded next, whatever its length:

    y = argmax of s(y') over the frontier,    s(y) = sum_t log p(y_t | y_<t, x)

unless k prefixes of its length have been expanded already; the search ends when the k-th output leaves the frontier.
Since s only falls, the first k prefixes of a length that leave the frontier are the beams of beam search, so that the
outputs are the same; prefixes that score below the k-th output are never expanded. This holds for scores without a
length penalty, and for a beam search that ends when no beam can improve its outputs
(``generation.semantics=huggingface``). By fairseq's rule, beam search may end before it finds the best of them.

``seqgen-generate common.user_dir=examples/papers/best_first_beam.py path=runs/a input=test.en generation.beam=5
generation.length_penalty=0 generation.semantics=huggingface generation.early_stopping=never
generation.search=best_first_beam``

Each step expands the best prefixes of every sentence, ``at_once`` of each, all in one batch: their rows are
taken out of the sessions that have read them (``fork``) and put together (``merge``). With ``at_once=1`` these are the
prefixes of the algorithm; the others may turn out not to be needed. The command prints the number of expansions.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch

from seqgen.extend import (
    BeamSearch,
    Candidates,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    Hypothesis,
    Session,
    register_search,
)


@dataclass(eq=False)
class Prefix:
    """A prefix of an output.

    Attributes:
        tokens: its tokens, each with the cumulative score.
        ended: whether it is an output.
        parent: the prefix that it continues.
        children: its continuations; ``None`` until it is expanded.
        place: the session that has scored them, and the row there.
    """

    tokens: tuple[tuple[int, float], ...] = ((-1, 0.0),)
    ended: bool = False
    parent: Any = None
    children: Any = None
    place: Any = None

    def __lt__(self, other: Prefix) -> bool:
        return self.tokens[-1][1] > other.tokens[-1][1]


class Frontier:
    """The prefixes of a sentence that have not left the frontier, and its outputs."""

    def __init__(self, beam: int):
        self.beam, self.heap, self.outputs = beam, [Prefix()], list[Prefix]()
        self.popped, self.expanded = Counter[int](), Counter[int]()

    def best(self, at_once: int) -> list[Prefix]:
        """The prefixes to expand next, the one that must be expanded first; none if the sentence is done."""
        while self.heap and len(self.outputs) < self.beam:
            first = self.heap[0]
            if self.may_expand(first) and first.children is None:
                likely = filter(self.may_expand, heapq.nsmallest(2 * at_once, self.heap))
                return [prefix for prefix in likely if prefix.children is None][:at_once]
            heapq.heappop(self.heap)
            if self.may_expand(first):
                self.expanded[len(first.tokens)] += 1
                for child in first.children:
                    heapq.heappush(self.heap, child)
            elif first.ended and self.popped[len(first.tokens)] < self.beam:
                self.outputs.append(first)
            self.popped[len(first.tokens)] += 1
        return []

    def may_expand(self, prefix: Prefix) -> bool:
        """True if a prefix is no output, and fewer than ``beam`` of its length have been expanded."""
        return not prefix.ended and self.expanded[len(prefix.tokens)] < self.beam


class BestFirstSession:
    """Searches a batch; each row of its sessions is a prefix. The arguments are those of ``Session``."""

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        penalty = setup.ranking.normalize and setup.ranking.len_penalty != 0
        if penalty or setup.observers or request.prefix_tokens is not None:
            what = "generation.length_penalty (set it to 0), observers, streamers, prefixes and generation.top_tokens"
            raise ConfigError(f"search=best_first_beam takes no {what}; remove them or choose search=beam")
        if obstacle := replace(setup, search=BeamSearch()).merge_obstacle:
            raise ConfigError(f"search=best_first_beam cannot merge prefixes, as {obstacle}; choose search=beam")
        self.search: Any = setup.search
        self.session = Session(setup, request, beam=1)
        assert isinstance(self.session.search, BeamSearch)
        self.session.search.candidates_per_beam *= setup.beam_size
        self.frontiers = [Frontier(setup.beam_size) for _ in self.session.live]
        self.last_steps: list[int] = self.session.sentences.own_limits.tolist()

    def run(self) -> list[list[Hypothesis]]:
        """Decode all sentences."""
        self.expand(self.session, [each.heap[0] for each in self.frontiers])
        while prefixes := [prefix for each in self.frontiers for prefix in each.best(self.search.at_once)]:
            self.expand(*self.resumed(prefixes))
        reason = self.session.setup.with_end_reason
        return [
            [reason(_hypothesis(output), last_step, timed_out=False) for output in each.outputs]
            for each, last_step in zip(self.frontiers, self.last_steps, strict=True)
        ]

    def resumed(self, prefixes: list[Any]) -> tuple[Session, list[Any]]:
        """A session that has read some prefixes, and these in the order of its rows."""
        prefixes = sorted(prefixes, key=lambda prefix: id(prefix.parent.place[0]))
        groups = groupby((prefix.parent.place for prefix in prefixes), key=itemgetter(0))
        merged, *others = [each.fork(torch.tensor([row for _, row in group])) for each, group in groups]
        for other in others:
            merged.merge(other)
        tokens = torch.tensor([[prefix.tokens[-1][0]] for prefix in prefixes])
        scores = torch.tensor([[prefix.tokens[-1][1]] for prefix in prefixes], dtype=torch.float64)
        merged.advance(Candidates(scores, tokens, torch.zeros_like(tokens)))
        return merged, prefixes

    def expand(self, session: Session, prefixes: list[Prefix]) -> None:
        """Score the continuations of some prefixes, the rows of a session."""
        self.search.expansions += len(prefixes)
        context, scores = session.score(session.backpointers.length)
        found = session.choose(context, scores)
        session.update_done(found, context.step)  # raises where a score is NaN
        if bool((found.scores > session.scores + 1e-4).any()):
            raise ConfigError("search=best_first_beam needs scores that only fall; choose search=beam")
        values = [each.tolist() for each in (found.tokens, found.scores, session.ended(found, context))]
        for row, (prefix, *each) in enumerate(zip(prefixes, *values, strict=True)):
            prefix.place = session, row
            prefix.children = [
                Prefix((*prefix.tokens, (token, score)), ended, prefix)
                for token, score, ended in zip(*each, strict=True)
                if score > -torch.inf
            ]


def _hypothesis(output: Prefix) -> Hypothesis:
    tokens, sums = zip(*output.tokens, strict=True)
    return Hypothesis(torch.tensor(tokens[1:]), sums[-1], torch.tensor(sums, dtype=torch.float64).diff())


@register_search("best_first_beam")
class BestFirstBeamSearch(BeamSearch):
    """Beam search that expands prefixes in the order of their scores."""

    session_class = BestFirstSession

    def __init__(self, at_once: int = 5):
        self.at_once, self.expansions = at_once, 0

    def summary(self) -> str:
        """The number of expansions; see ``Search.summary``."""
        return f"{self.expansions} prefixes were expanded"
