"""Searches of examples/papers that are beam search with another choice, against the same as loops over one sentence."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from examples.papers.bilevel import BilevelSearch
from examples.papers.conformal_beams import ConformalPruning, calibrate
from examples.papers.determinantal_beams import DeterminantalBeams
from examples.papers.dynamic_beams import ThresholdPruning
from examples.papers.lookahead import Lookahead
from seqgen.core.beam_search import BeamSearch
from seqgen.core.combinations import ProbabilityMean
from seqgen.core.search import Search
from tests.generators import scripted_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import EOS, PAD, Beam, Settings, beam_search, next_scores
from tests.scripted_model import Rule, batch_of, random_rule

pytestmark = pytest.mark.slow

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
RULE = random_rule(vocab=9, seed=4)
LONGEST = 5

Choose = Callable[[list[Beam], tuple[int, ...], int], list[Beam | None]]
"""From all continuations, the source and the number of beams to the candidates of a step."""


def conformal(thresholds: list[float]) -> Choose:
    def choose(found: list[Beam], source: tuple[int, ...], beam: int) -> list[Beam | None]:
        limits = [thresholds[min(len(tokens), len(thresholds)) - 1] * len(tokens) for _, tokens in found]
        return [one if one[0] >= limit else None for one, limit in zip(found, limits, strict=True)][: 2 * beam]

    return choose


def threshold_pruning(absolute: float, relative: float = 0, local: float = 0, per_beam: int = 0) -> Choose:
    """The four rules of the paper; of probabilities, not logarithms."""

    def choose(found: list[Beam], source: tuple[int, ...], beam: int) -> list[Beam | None]:
        parents = [tokens[:-1] for _, tokens in found]
        ranks = [parents[:place].count(parent) for place, parent in enumerate(parents)]
        found = [one for one, rank in zip(found, ranks, strict=True) if not per_beam or rank < per_beam][: 2 * beam]
        cfg = Settings(beam, max_len=LONGEST, min_len=0)
        words = [math.exp(next_scores(RULE, source, tokens[:-1], cfg)[tokens[-1]]) for _, tokens in found]
        best = math.exp(found[0][0])
        limit = max(relative * best, best * math.exp(-absolute) if absolute else 0)
        kept = [
            math.exp(one[0]) >= limit and word >= local * max(words) for one, word in zip(found, words, strict=True)
        ]
        return [one if keep else None for one, keep in zip(found, kept, strict=True)]

    return choose


def determinantal(weight: float, order: int, decay: float) -> Choose:
    """Adds greedily the candidate with which the determinant is largest; three times the beams are looked at."""

    def choose(found: list[Beam], source: tuple[int, ...], beam: int) -> list[Beam | None]:
        found = found[: 3 * beam]
        quality = torch.tensor([total for total, _ in found], dtype=torch.float64).softmax(0)
        kernels = [[1.0 if s == t else similarity(s, t, order, decay) for _, t in found] for _, s in found]
        matrix = quality.diag() + weight * torch.tensor(kernels, dtype=torch.float64)
        chosen: list[int] = []
        while len(chosen) < min(2 * beam, len(found)):
            rest = [item for item in range(len(matrix)) if item not in chosen]
            chosen.append(max(rest, key=lambda item: float(matrix[[*chosen, item]][:, [*chosen, item]].logdet())))
        return [found[item] for item in chosen]

    return choose


def kernel(s: tuple[int, ...], t: tuple[int, ...], order: int, decay: float) -> float:
    """The string subsequence kernel by enumeration, not normalized."""
    places = (itertools.combinations(range(len(text)), order) for text in (s, t))
    pairs = [(i, j) for i, j in itertools.product(*places) if [s[k] for k in i] == [t[k] for k in j]]
    return sum(decay ** (i[-1] - i[0] + 1 + j[-1] - j[0] + 1) for i, j in pairs)


def similarity(s: tuple[int, ...], t: tuple[int, ...], order: int, decay: float) -> float:
    norm = kernel(s, s, order, decay) * kernel(t, t, order, decay)
    return kernel(s, t, order, decay) / math.sqrt(norm) if norm > 0 else 0.0


THRESHOLDS = [-2.5, -2.0, -1.6, -1.3]
PRUNING: Any = [(1.0,), (0.0, 0.3), (0.0, 0.0, 0.4), (0.0, 0.0, 0.0, 2), (2.5, 0.1, 0.05, 3)]
DETERMINANTAL = [(0.05, 2, 0.5), (0.3, 1, 0.9), (2.0, 2, 1.0)]


def beam_search_tokens(beam: int, **options: Any) -> list[list[list[int]]]:
    found = scripted_generator([RULE], BeamSearch(), beam, **options).generate(batch_of(SOURCES))
    return [[hypothesis.tokens.tolist() for hypothesis in line] for line in found]


@pytest.mark.parametrize("skip_log_softmax", [True, False])
@pytest.mark.parametrize(
    ("search", "choose"),
    [
        (ConformalPruning(THRESHOLDS), conformal(THRESHOLDS)),
        *((ThresholdPruning(*values), threshold_pruning(*values)) for values in PRUNING),
        *((DeterminantalBeams(*values), determinantal(*values)) for values in DETERMINANTAL),
    ],
)
def test_candidates_are_those_of_the_paper(search: Search, choose: Choose, skip_log_softmax: bool) -> None:
    generator = scripted_generator([RULE], search, 4, skip_log_softmax=skip_log_softmax)
    found = [as_pairs(hypotheses) for hypotheses in generator.generate(batch_of(SOURCES))]
    cfg = Settings(4, max_len=LONGEST, min_len=0)
    for source, pairs in zip(SOURCES, found, strict=True):
        assert_same_pairs(pairs, beam_search(RULE, source, cfg, functools.partial(choose, source=source, beam=4)))
    assert [[list(tokens) for tokens, _ in pairs] for pairs in found] != beam_search_tokens(4)


def lookahead(source: tuple[int, ...], beam: int, depth: int, weight: float) -> Pairs:
    """The outputs by fairseq's rules, without a length penalty."""
    cfg = Settings(max_len=LONGEST, min_len=0)

    def ahead(history: tuple[int, ...]) -> float:
        total = 0.0
        for _ in range(depth):
            if history[-1] == EOS:
                break
            scores = next_scores(RULE, source, history, cfg)
            token = max(range(len(scores)), key=lambda token: scores[token])
            total, history = total + scores[token], (*history, token)
        return total

    active: Pairs = [((), 0.0)]
    finished: Pairs = []
    while active and len(finished) < beam:
        found = [
            ((*history, token), total + score)
            for history, total in active
            for token, score in enumerate(next_scores(RULE, source, history, cfg))
            if score > -math.inf
        ]
        found = sorted(found, key=lambda pair: -pair[1])[: 2 * beam]
        found.sort(key=lambda pair: -pair[1] - weight * ahead(pair[0]))
        ended = [pair for pair in found[:beam] if pair[0][-1] == EOS]
        finished += ended[: beam - len(finished)]
        active = [pair for pair in found if pair[0][-1] != EOS][:beam]
    return sorted(finished, key=lambda pair: -pair[1])


@pytest.mark.parametrize(("beam", "depth", "weight"), [(1, 2, 1.0), (3, 1, 0.5), (3, 4, 1.0), (4, 9, 2.0)])
def test_lookahead(beam: int, depth: int, weight: float) -> None:
    generator = scripted_generator([RULE], Lookahead(depth, weight), beam, normalize_scores=False)
    found = generator.generate(batch_of(SOURCES))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert_same_pairs(as_pairs(hypotheses), lookahead(source, beam, depth, weight))
    assert [[h.tokens.tolist() for h in line] for line in found] != beam_search_tokens(beam, normalize_scores=False)


def bilevel(members: list[Rule], weights: list[float], source: tuple[int, ...], beam: int, lower: int) -> Pairs:
    """Algorithm 1 with dicts from hypotheses to scores; the score of a finished hypothesis is divided by its length."""
    shared, finished = {(): 0.0}, []
    for step in range(LONGEST + 1):
        votes: dict[tuple[int, ...], float] = {}
        for weight, rule in zip(weights, members, strict=True):
            own = {}
            for prefix, score in shared.items():
                lprobs = rule(source, prefix).log_softmax(-1).tolist()
                for token in [EOS] if step == LONGEST else range(len(lprobs)):
                    if token != PAD and (step > 0 or token != EOS):
                        own[(*prefix, token)] = score + lprobs[token]
            for hypothesis in sorted(own, key=lambda key: own[key], reverse=True)[: lower or beam]:
                votes[hypothesis] = votes.get(hypothesis, 0.0) + weight * math.exp(own[hypothesis])
        best = sorted(votes, key=lambda key: votes[key], reverse=True)[:beam]
        finished += [(one, math.log(votes[one]) / len(one)) for one in best if one[-1] == EOS]
        shared = {one: math.log(votes[one]) for one in best if one[-1] != EOS}
        if len(finished) >= beam or not shared:
            break
    return sorted(finished[:beam], key=lambda pair: pair[1], reverse=True)


@pytest.mark.parametrize(("beam", "lower"), [(1, 1), (3, 0), (3, 2), (4, 7)])
@pytest.mark.parametrize("weights", [[1 / 3, 1 / 3, 1 / 3], [0.2, 0.7, 0.1]])
def test_bilevel_search_is_algorithm_1(beam: int, lower: int, weights: list[float]) -> None:
    for seed in range(6):
        members = [random_rule(9, 10 * seed + number) for number in range(3)]
        combination = ProbabilityMean(weights)
        generator = scripted_generator(members, BilevelSearch(lower), beam, combination=combination, min_len=1)
        for source, found in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
            assert_same_pairs(as_pairs(found), bilevel(members, weights, source, beam, lower))


def test_thresholds_by_hand() -> None:
    """Nine references: one may be dropped at each length of ten with alpha 0.1 while nine are left, none of eight."""
    values = [[-1.0 - n, -4.0 + n] for n in range(8)] + [[-0.5]]
    thresholds, coverage = calibrate(values, 0.1)
    assert thresholds == [-8.0, -math.inf]  # the value -1.0 - 7 is the smallest; then floor(0.1 * 9) = 0
    assert coverage == pytest.approx(0.9)
    thresholds, coverage = calibrate(values, 0.25)
    # two of nine at one token (-8, -7), two of the other seven at two: -4 / 2, -3 / 2, ..., 1 / 2 and -0.5 of the short
    assert thresholds == [-7.0, -1.5]
    assert coverage == pytest.approx(0.8 * 0.75)
