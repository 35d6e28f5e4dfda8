"""examples/papers/exact_search/lattice.py against the enumeration of all outputs."""

from __future__ import annotations

import heapq
import math
from typing import Any

import pytest

from examples.papers.exact_search.lattice import LatticeSearch
from seqgen.core.errors import ConfigError
from seqgen.text.translator import Translator
from tests.generators import scripted_generator
from tests.hypotheses import as_pairs
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import batch_of, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
RULE = random_rule(vocab=6, seed=4)


def plain(source: tuple[int, ...], budget: int, ngram: int, tolerance: int, width: int) -> dict[tuple[int, ...], float]:
    """The outputs of the lattice and their sums, by the algorithm written with dicts and recursion."""
    cfg, edges, frontier = Settings(max_len=4, min_len=0), {}, []  # prefix -> [(token, lprob, prefix or None)]

    def scored(past: tuple[int, ...]) -> list[tuple[float, int]]:
        scores = next_scores(RULE, source, past, cfg)
        return sorted(((s, t) for t, s in enumerate(scores) if s > -math.inf), reverse=True)

    def expand(past: tuple[int, ...], total: float) -> list[tuple[float, tuple[int, ...], int, float]]:
        edges[past] = [(token, score, None) for score, token in scored(past) if token == EOS]
        return [(-total - score, past, token, score) for score, token in scored(past) if token != EOS][:width]

    frontier += expand((), 0.0)
    while frontier and len(edges) < budget:
        heapq.heapify(frontier)
        item: Any = heapq.heappop(frontier)
        while item is not None and len(edges) < budget:
            negative, past, token, score = item
            new, item = (*past, token), None
            twins = [
                known for known in edges
                if len(new) >= ngram > 0 and len(known) >= 1 and known[-ngram:] == new[-ngram:]
                and abs(len(known) - len(new)) <= tolerance and new[: len(known)] != known
            ]  # fmt: skip
            edges[past].append((token, score, twins[0] if twins else new))
            if not twins:
                further = expand(new, -negative)
                ends = max((s for _, s, _ in edges[new]), default=-math.inf)
                if further and further[0][3] > ends:
                    item = further.pop(0)
                frontier += further
    found: dict[tuple[int, ...], float] = {}

    def walk(at: tuple[int, ...], output: tuple[int, ...], total: float) -> None:
        for token, score, child in edges[at] if len(output) <= cfg.max_len else ():
            if child is None:
                found[*output, token] = max(total + score, found.get((*output, token), -math.inf))
            elif child in edges:
                walk(child, (*output, token), total + score)

    walk((), (), 0.0)
    return found


@pytest.mark.parametrize(("ngram", "tolerance", "width"), [(0, 0, 3), (1, 0, 4), (1, 1, 6), (2, 2, 4)])
@pytest.mark.parametrize("budget", [1, 6, 17])
def test_search(budget: int, ngram: int, tolerance: int, width: int) -> None:
    search = LatticeSearch(ngram, tolerance, width, budget, paths=100_000)
    found = scripted_generator([RULE], search, 5000, words=2, max_len_b=4, normalize_scores=False).generate(
        batch_of(SOURCES)
    )
    for source, hypotheses in zip(SOURCES, found, strict=True):
        wanted = plain(source, budget, ngram, tolerance, width)
        assert dict(as_pairs(hypotheses)) == pytest.approx(wanted)
        assert [h.score for h in hypotheses] == pytest.approx(sorted(wanted.values(), reverse=True))


def test_by_its_keys() -> None:
    translator, texts = Translator(text_model(), beam=4, nbest=4, max_len_b=6), TEXTS[:2]
    found = translator.translate(texts, search="lattice", **{"search.ngram": 1, "search.expansions": 12})
    by_object = translator.translate(texts, search=LatticeSearch(ngram=1, expansions=12))
    assert [[item.text for item in line.hypotheses] for line in found] == [
        [item.text for item in line.hypotheses] for line in by_object
    ]
    first = translator.translate(texts, search="best_first", return_scores=True, **{"search.expansions": 12})
    for item in (item for line in first for item in line.hypotheses):
        assert item.score == pytest.approx(item.model_score, abs=1e-5)
    with pytest.raises(ConfigError, match="no attention"):
        translator.translate(texts, search="lattice", coverage_penalty=0.2)
