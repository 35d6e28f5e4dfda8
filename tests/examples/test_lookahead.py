"""examples/papers/lookahead.py against the same search written with lists."""

from __future__ import annotations

import math

import pytest

from examples.papers.lookahead import Lookahead
from seqgen.core.beam_search import BeamSearch
from seqgen.core.errors import ConfigError
from seqgen.core.observers import Observer
from tests.generators import scripted_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import Rule, batch_of, random_rule

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
RULE = random_rule(vocab=7, seed=2, sharpness=2.0)


def plain(rule: Rule, source: tuple[int, ...], beam: int, depth: int, weight: float, longest: int) -> Pairs:
    """The outputs by fairseq's rules, without a length penalty."""
    cfg = Settings(max_len=longest, min_len=0)

    def ahead(history: tuple[int, ...]) -> float:
        total = 0.0
        for _ in range(depth):
            if history[-1] == EOS:
                break
            scores = next_scores(rule, source, history, cfg)
            token = max(range(len(scores)), key=lambda token: scores[token])
            total, history = total + scores[token], (*history, token)
        return total

    active: Pairs = [((), 0.0)]
    finished: Pairs = []
    while active and len(finished) < beam:
        found = [
            ((*history, token), total + score)
            for history, total in active
            for token, score in enumerate(next_scores(rule, source, history, cfg))
            if score > -math.inf
        ]
        found = sorted(found, key=lambda pair: -pair[1])[: 2 * beam]
        found.sort(key=lambda pair: -pair[1] - weight * ahead(pair[0]))
        ended = [pair for pair in found[:beam] if pair[0][-1] == EOS]
        finished += ended[: beam - len(finished)]
        active = [pair for pair in found if pair[0][-1] != EOS][:beam]
    return sorted(finished, key=lambda pair: -pair[1])


@pytest.mark.parametrize(("beam", "depth", "weight"), [(1, 2, 1.0), (3, 1, 0.5), (3, 4, 1.0), (4, 9, 2.0)])
def test_search(beam: int, depth: int, weight: float) -> None:
    options = {"words": 3, "max_len_b": 5, "normalize_scores": False}
    found = scripted_generator([RULE], Lookahead(depth, weight), beam, **options).generate(batch_of(SOURCES))
    usual = scripted_generator([RULE], BeamSearch(), beam, **options).generate(batch_of(SOURCES))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert_same_pairs(as_pairs(hypotheses), plain(RULE, source, beam, depth, weight, 5))
    assert [as_pairs(line) for line in found] != [as_pairs(line) for line in usual]


def test_without_lookahead_it_is_beam_search() -> None:
    usual = scripted_generator([RULE], BeamSearch(), 3, words=3).generate(batch_of(SOURCES))
    for search in (Lookahead(0, 1.0), Lookahead(3, 0.0)):
        found = scripted_generator([RULE], search, 3, words=3).generate(batch_of(SOURCES))
        for one, two in zip(found, usual, strict=True):
            assert_same_pairs(as_pairs(one), as_pairs(two))


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="takes no observers"):
        scripted_generator([RULE], Lookahead(), 3, words=3, observers=[Observer()]).generate(batch_of(SOURCES))
