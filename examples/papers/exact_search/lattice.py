"""Best-first search, and lattice search: best-first search that merges similar prefixes.

Xu, Jonnalagadda and Durrett 2022 (preprint 2021), "Massive-scale Decoding for Text Generation using Lattices". The
frontier has all continuations that were not expanded yet. The one with the largest ``log p`` is expanded, and followed
greedily until the output ends (depth-first completion). A prefix ``a`` is merged with an expanded prefix ``b`` if ::

    the last n tokens of a and b are equal,    and    |length(a) - length(b)| <= tolerance

Then ``a`` is not expanded: what follows ``b`` also follows ``a``. The lattice has many more outputs than were expanded;
the score of one that contains merged prefixes is a sum of the lattice's ``log p``, an approximation::

    seqgen-generate common.user_dir=examples/papers/exact_search path=runs/a input=test.en generation.search=lattice
        generation.max_len_b=40 search.ngram=3 search.expansions=60 generation.beam=20 generation.nbest=20

``generation.search=best_first`` does not merge.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from seqgen.extend import Candidates, ConfigError, Hypothesis, Session, option, register_search

from .exact import Branch, ExactSearch, ExactSession


@dataclass(eq=False)
class Node:
    """An expanded prefix: its tokens, their cumulative score, and edges.

    An edge has a token, its log-probability, and the prefix after it, ``None`` if the output ends. ``bests[r]`` is the
    largest sum of log-probabilities from here to an end that is at most ``r`` edges away.
    """

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    edges: list[tuple[int, float, Node | None]] = field(default_factory=list)
    bests: list[float] = field(default_factory=lambda: [-torch.inf])


class LatticeSession(ExactSession):
    """Builds the lattice of each sentence of the batch; branches of ``ExactSession`` return to earlier prefixes."""

    def find(self, session: Session) -> list[Hypothesis]:
        """The hypotheses of the sentence; see ``ExactSession``."""
        self.options = cast(LatticeSearch, self.setup.search)
        if self.setup.ranking.coverage:
            raise ConfigError("paths through a lattice have no attention; remove generation.coverage_penalty")
        self.nodes: list[Node] = []
        self.by_suffix: dict[tuple[int, ...], list[Node]] = defaultdict(list)
        self.count = itertools.count()  # of equal scores, the earlier one is first
        frontier, newest = self.visit(Node(), session), None
        while (frontier or newest) and self.expanded < self.expansions and not self.timed_out:
            newest = self.follow(frontier, *(newest or heapq.heappop(frontier)))
        return self.paths()

    def visit(self, node: Node, session: Session) -> list[Any]:
        """Expand the prefix that a session has reached; returns its continuations, best first."""
        self.node = node  # `keep` adds the edges at which outputs end
        self.nodes.append(node)
        self.by_suffix[node.tokens[-self.options.ngram :]].append(node)
        found = []
        for branch in self.expand(session):
            scores = branch.candidates.scores[0, : self.options.width].tolist()
            found += [(-score, next(self.count), node, branch, column) for column, score in enumerate(scores)]
        return found

    def follow(self, frontier: list[Any], score: float, _: int, node: Node, branch: Branch, column: int) -> Any:
        """Merge or expand a continuation; returns the one to follow next, unless the output ends here."""
        active = branch.candidates.gather(torch.tensor([[column]], device=self.whole.live.device))
        tokens = (*node.tokens, int(active.tokens))
        twin = self.twin(tokens)
        child = twin or Node(tokens, -score)
        node.edges.append((tokens[-1], -score - node.score, child))
        if twin:
            return None
        found = self.visit(child, branch.resumed(active))
        ends = child.score + max((lprob for _, lprob, _ in child.edges), default=-torch.inf)
        continues = bool(found) and -found[0][0] > ends
        for continuation in found[continues:]:
            heapq.heappush(frontier, continuation)
        return found[0] if continues else None

    def twin(self, tokens: tuple[int, ...]) -> Node | None:
        """An expanded prefix with which a prefix is merged, but not one that it begins with."""
        search = self.options
        near = self.by_suffix[tokens[-search.ngram :]] if 0 < search.ngram <= len(tokens) else ()
        near = [node for node in near if abs(len(node.tokens) - len(tokens)) <= search.tolerance]
        return next((node for node in near if tokens[: len(node.tokens)] != node.tokens), None)

    def keep(self, session: Session, ended: Candidates, step: int) -> None:
        """Add edges at which outputs end; see ``ExactSession``."""
        for token, score in zip(ended.tokens[0].tolist(), ended.scores[0].tolist(), strict=True):
            self.node.edges.append((token, score - self.node.score, None))

    def paths(self) -> list[Hypothesis]:
        """The outputs of the lattice with the largest sums of log-probabilities, found by A* search."""
        for left in range(self.longest + 1):
            for node in self.nodes:
                sums = [lprob + (after.bests[left] if after else 0.0) for _, lprob, after in node.edges]
                node.bests.append(max(sums, default=-torch.inf))
        heap: list[Any] = [(0.0, next(self.count), 0.0, [], self.nodes[0])]
        found: list[Hypothesis] = []
        while heap and len(found) < max(self.wanted, self.options.paths):
            _, _, total, path, node = heapq.heappop(heap)
            if node is None:
                lprobs = torch.tensor([lprob for _, lprob in path])
                score = float(self.setup.ranking.score(lprobs.sum(), len(path)))
                tokens = torch.tensor([token for token, _ in path])
                found.append(Hypothesis(tokens, score, lprobs))
                continue
            for token, lprob, after in node.edges:
                bound = total + lprob + (after.bests[self.longest - len(path)] if after else 0.0)
                if bound > -torch.inf:
                    longer = [*path, (token, lprob)]
                    heapq.heappush(heap, (-bound, next(self.count), total + lprob, longer, after))
        return sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True)[: self.wanted]


@dataclass
class LatticeConfig:
    """Configuration of lattice search; its fields are the keys ``search.FIELD``."""

    ngram: int = option(3, "equal last tokens for which prefixes are merged; 0: they are not merged", minimum=0)
    tolerance: int = option(2, "largest difference of the lengths of merged prefixes", minimum=0)
    width: int = option(5, "continuations of each prefix", minimum=1)
    expansions: int = option(100, "prefixes of a sentence that are expanded", minimum=1)
    paths: int = option(100, "outputs that are read from the lattice, of which the best are returned", minimum=1)


@register_search("lattice", config=LatticeConfig, presets={"best_first": LatticeConfig(ngram=0)})
class LatticeSearch(ExactSearch):
    """Best-first search with depth-first completion and merged prefixes; the keys are those of ``LatticeConfig``."""

    session_class = LatticeSession

    def __init__(self, ngram: int = 3, tolerance: int = 2, width: int = 5, expansions: int = 100, paths: int = 100):
        super().__init__(expansions, at_once=1)
        self.ngram, self.tolerance, self.width, self.paths = ngram, tolerance, width, paths
