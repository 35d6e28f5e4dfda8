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

Each step expands the best prefixes of every sentence, ``search.at_once`` of each, all in one batch: their rows are
taken out of the sessions that have read them (``fork``) and put together (``merge``). With ``at_once=1`` these are the
prefixes of the algorithm; the others may turn out not to be needed. The command prints the number of expansions.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
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
    option,
    register_search,
)

_SESSIONS = 4
"""Of more sessions, the rows that are still needed are merged into one."""


@dataclass(eq=False)
class Prefix:
    """A prefix of an output.

    Attributes:
        tokens: its tokens, each with the cumulative score.
        ended: whether it is an output.
        parent: the prefix that it continues.
        children: its continuations; ``None`` until it is expanded.
        session: the session that has scored them, in row ``row``.
    """

    tokens: tuple[tuple[int, float], ...] = ((-1, 0.0),)
    ended: bool = False
    parent: Prefix | None = None
    children: list[Prefix] | None = None
    session: Any = None
    row: int = 0

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
            length = len(self.heap[0].tokens)
            expands = not self.heap[0].ended and self.expanded[length] < self.beam
            if expands and self.heap[0].children is None:
                return list(islice(self.waiting(), at_once))
            first = heapq.heappop(self.heap)
            if expands:
                self.expanded[length] += 1
                for child in first.children or ():
                    heapq.heappush(self.heap, child)
            elif first.ended and self.popped[length] < self.beam:
                self.outputs.append(first)
            self.popped[length] += 1
        self.heap.clear()
        return []

    def waiting(self) -> Iterator[Prefix]:
        """The prefixes that may have to be expanded, best first: of each length, the best of those that wait."""
        places = self.expanded.copy()
        for prefix in sorted(self.heap):
            length = len(prefix.tokens)
            places[length] += not prefix.ended
            if not prefix.ended and prefix.children is None and places[length] <= self.beam:
                yield prefix


class BestFirstSession:
    """Searches a batch; each row of its sessions is a prefix. The arguments are those of ``Session``."""

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        ranking = setup.ranking
        refused = {
            "there is a length penalty": ranking.normalize and ranking.len_penalty,
            "there are observers": setup.observers,
            "generation.top_tokens is set": setup.top_tokens,
            "there is a streamer": request.streamer,
            "there is a prefix": request.prefix_tokens is not None,
            (obstacle := replace(setup, search=BeamSearch()).merge_obstacle): obstacle,
        }
        for what, value in refused.items():
            if value:
                raise ConfigError(f"best-first beam search cannot decode: {what}; leave it out or take search=beam")
        assert isinstance(setup.search, BestFirstBeamSearch)
        self.search, self.session = setup.search, Session(setup, request, beam=1)
        self.sessions: list[Session] = []
        largest = self.session.sentences.num_candidates * setup.beam_size
        self.session.search.candidates_per_beam = largest  # type: ignore[attr-defined]
        self.frontiers = [Frontier(setup.beam_size) for _ in self.session.live]

    def run(self) -> list[list[Hypothesis]]:
        """Decode all sentences."""
        self.expand(self.session, [each.heap[0] for each in self.frontiers])
        while prefixes := [prefix for each in self.frontiers for prefix in each.best(self.search.at_once)]:
            self.expand(*self.resumed(prefixes))
        return [[_hypothesis(output, self.dtype) for output in each.outputs] for each in self.frontiers]

    def resumed(self, prefixes: list[Prefix]) -> tuple[Session, list[Prefix]]:
        """A session that has read some prefixes, and these in the order of its rows."""
        if len(self.sessions) > _SESSIONS:
            waiting = [prefix.parent for each in self.frontiers for prefix in each.waiting()]
            session, parents = self.gathered(list(dict.fromkeys(waiting)))
            for row, parent in enumerate(parents):
                parent.session, parent.row = session, row
            self.sessions = [session]
        prefixes = sorted(prefixes, key=lambda prefix: id(prefix.parent.session))  # type: ignore[union-attr]
        session, _ = self.gathered([prefix.parent for prefix in prefixes])
        tokens = torch.tensor([[prefix.tokens[-1][0]] for prefix in prefixes])
        scores = torch.tensor([[prefix.tokens[-1][1]] for prefix in prefixes], dtype=self.dtype)
        session.advance(Candidates(scores, tokens, torch.zeros_like(tokens)))
        return session, prefixes

    def gathered(self, prefixes: list[Any]) -> tuple[Session, list[Any]]:
        """A session of the rows that have scored the continuations of some prefixes, and these in their order."""
        prefixes = sorted(prefixes, key=lambda prefix: id(prefix.session))
        groups = groupby(prefixes, key=lambda prefix: prefix.session)
        merged, *others = [each.fork(torch.tensor([prefix.row for prefix in group])) for each, group in groups]
        for other in others:
            merged.merge(other)
        return merged, prefixes

    def expand(self, session: Session, prefixes: list[Prefix]) -> None:
        """Score the continuations of some prefixes, the rows of a session."""
        self.search.expansions += len(prefixes)
        step = session.backpointers.length
        context, scored = session.score(step)
        found = session.choose(context, scored)
        session.needs_another_step(found, step)  # raises where a score is NaN
        if bool((found.scores > session.scores + 1e-4).any()):
            raise DecodingError("best-first beam search needs scores that only fall; take search=beam")
        values = [each.tolist() for each in (found.tokens, found.scores, session.ended(found, context))]
        self.sessions.append(session)
        self.dtype = found.scores.dtype
        for row, (prefix, *each) in enumerate(zip(prefixes, *values, strict=True)):
            prefix.session, prefix.row = session, row
            prefix.children = [
                Prefix((*prefix.tokens, (token, score)), ended, prefix)
                for token, score, ended in zip(*each, strict=True)
                if score > -torch.inf
            ]


def _hypothesis(output: Prefix, dtype: torch.dtype) -> Hypothesis:
    tokens, sums = zip(*output.tokens, strict=True)
    return Hypothesis(torch.tensor(tokens[1:]), sums[-1], torch.tensor(sums, dtype=dtype).diff())


@dataclass
class BestFirstConfig:
    """Configuration of best-first beam search."""

    at_once: int = option(5, "prefixes of a sentence that are expanded in one batch", minimum=1)


@register_search("best_first_beam", config=BestFirstConfig)
class BestFirstBeamSearch(BeamSearch):
    """Beam search that expands prefixes in the order of their scores."""

    session_class = BestFirstSession
    certifiable = False

    def __init__(self, at_once: int = 5):
        self.at_once, self.expansions = at_once, 0

    def summary(self) -> str:
        """The number of expansions; see ``Search.summary``."""
        return f"{self.expansions} prefixes were expanded"
