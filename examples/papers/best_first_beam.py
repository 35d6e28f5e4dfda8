"""Best-first beam search (Meister, Vieira and Cotterell 2020, "Best-First Beam Search", algorithm 2).

Of all prefixes of a sentence, the one with the best score s is expanded next, whatever its length:

    y = argmax of s(y') over the frontier,    s(y) = sum_t log p(y_t | y_<t, x)

unless k prefixes of its length have been expanded already; the search ends when the k-th output leaves the frontier.
Since s only falls, the first k prefixes of a length that leave the frontier are the beam of beam search with k beams, so
that the outputs are the same; prefixes that score below the last output are never expanded. The law holds for scores
that only fall (``generation.lenpen=0``), and for beam search that ends when no beam can improve the outputs
(``generation.semantics=huggingface``; with fairseq's rule, beam search ends earlier, and may miss better outputs).

``seqgen-generate common.user_dir=examples/papers/best_first_beam.py path=runs/a input=test.en generation.beam=5
generation.lenpen=0 generation.search=best_first_beam``

Each step expands the best prefix of every sentence in one batch: a pool, which is a session with one row for each
expanded prefix, is forked, and the step's session is merged into it. Outputs are those of beam search, and the command
prints the number of prefixes that were expanded.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from seqgen.extend import (
    BeamSearch,
    Candidates,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    Hypothesis,
    Search,
    Session,
    register_search,
)


class Frontier:
    """The prefixes of a sentence that are not expanded yet, and what has left the frontier.

    Entries are ``(-score, number, length, token, ended, parent, row)``: the token continues ``row`` of the pool, and
    ``parent`` is the chain of the tokens and scores before it.
    """

    def __init__(self, beam: int):
        self.beam = beam
        self.heap: list[Any] = []
        self.expanded, self.ended, self.seen = Counter[int](), Counter[int](), Counter[int]()
        self.outputs: list[tuple[float, Any]] = []

    def pop(self) -> Any:
        """The prefix to expand next; ``None`` if the sentence is done."""
        while self.heap and len(self.outputs) < self.beam:
            entry = heapq.heappop(self.heap)
            score, _, length, token, ended, parent, _ = entry
            place = self.seen[length]
            self.seen[length] += 1
            if ended:
                if place < self.beam:
                    self.outputs.append((-score, (token, -score, parent)))
            elif self.expanded[length] < self.beam:
                self.expanded[length] += 1
                return entry
        self.heap.clear()
        return None
