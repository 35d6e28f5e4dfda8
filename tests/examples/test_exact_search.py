"""Searches of examples/papers: exact ones against the enumeration of all outputs, others against plain beam search."""

import functools
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from examples.papers.best_first_beam import BestFirstBeamSearch
from examples.papers.bilevel import BilevelSearch
from examples.papers.conformal_beams import ConformalPruning, calibrate
from examples.papers.determinantal_beams import DeterminantalBeams
from examples.papers.dynamic_beams import ThresholdPruning
from examples.papers.exact_search.exact import ExactSearch
from examples.papers.exact_search.lattice import LatticeSearch
from examples.papers.lookahead import Lookahead
from seqgen.extend import BeamSearch, Hypothesis, ProbabilityMean, Ranking, Search
from tests.generators import make_generator, scripted_generator
from tests.hypotheses import Pairs, as_pairs, assert_same, assert_same_pairs
from tests.model_zoo import VOCAB, sharp
from tests.reference_search import EOS, PAD, Beam, Settings, beam_search, next_scores
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule, table_rule
from tests.waiting_sentences import sources

pytestmark = pytest.mark.slow

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
RULE = random_rule(vocab=6, seed=4)


def everything(rule: Rule, source: tuple[int, ...], cfg: Settings, ranking: Ranking) -> Pairs:
    """All outputs by fairseq's rules, best first."""
    found: Pairs = []
    running: Pairs = [((), 0.0)]
    while running:
        history, total = running.pop()
        for token, score in enumerate(next_scores(rule, source, history, cfg)):
            if token == EOS and score > -math.inf:
                value = float(ranking.score(torch.tensor(total + score, dtype=torch.float64), len(history) + 1))
                found.append(((*history, token), value))
            elif score > -math.inf:
                running.append(((*history, token), total + score))
    return sorted(found, key=lambda pair: -pair[1])


@pytest.mark.parametrize("at_once", [1, 3, 50])
@pytest.mark.parametrize(
    "settings",
    [
        Settings(beam=1, normalize=False, max_len=5),
        Settings(beam=4, length_penalty=0.3, max_len=4),
        Settings(beam=2, length_penalty=-1.0, max_len=4),
        Settings(beam=2, length_penalty=0.0, temperature=2.0, max_len=3),
        Settings(beam=3, min_len=3, max_len=4, unkpen=2.0),
        Settings(beam=3, no_repeat_ngram=2, max_len=4),
        Settings(beam=3, prefix=(5, 4), max_len=5),
        Settings(beam=3, prefix=(4, 4, 4), max_len=3),
        Settings(beam=500, max_len=2),
        Settings(beam=3, max_len=0, min_len=0),
    ],
    ids=str,
)
def test_equals_enumeration(settings: Settings, at_once: int) -> None:
    rule = random_rule(vocab=6, seed=settings.beam, sharpness=2.0)
    ranking = Ranking(settings.normalize, settings.length_penalty)
    options = {**settings.arguments(), "max_len_b": settings.max_len}
    search = ExactSearch(at_once=at_once)
    generator = make_generator([ScriptedModel(rule)], dictionary(2), search_strategy=search, **options)
    results = generator.generate(batch_of(SOURCES), prefix_tokens=settings.prefixes(len(SOURCES)))
    for source, hypotheses in zip(SOURCES, results, strict=True):
        wanted = everything(rule, source, settings, ranking)
        assert_same_pairs(as_pairs(hypotheses), wanted[: settings.beam])


def test_wu_penalty_and_huggingface_rules() -> None:
    """By Hugging Face's rules an output may also end without end-of-sentence, at the maximum length."""
    rule, longest = random_rule(vocab=6, seed=3), 3
    options = {"max_len_b": longest, "len_penalty": 1.4, "length_penalty_form": "wu", "semantics": "huggingface"}
    (found,) = scripted_generator([rule], ExactSearch(at_once=4), words=2, **options).generate(batch_of(SOURCES[:1]))
    wanted: Pairs = []
    for length in range(1, longest + 2):
        for tokens in itertools.product(range(6), repeat=length):
            if EOS not in tokens[:-1] and (tokens[-1] == EOS or length > longest):
                steps = [float(rule(SOURCES[0], tokens[:i]).log_softmax(-1)[token]) for i, token in enumerate(tokens)]
                wanted.append((tokens, sum(steps) / ((5 + length) / 6) ** 1.4))
    assert_same_pairs(as_pairs(found), sorted(wanted, key=lambda pair: -pair[1])[:4])


def test_finds_what_a_narrow_beam_misses_and_prunes_most() -> None:
    """Greedy takes w0; the one sentence of probability .36 begins with w1, and few prefixes need be looked at."""
    table = {(): {4: 0.6, 5: 0.4}, (4,): {4: 0.4, 5: 0.3, EOS: 0.3}, (5,): {EOS: 0.9, 4: 0.1}}
    options = {"words": 2, "normalize_scores": False, "max_len_b": 8, "min_len": 1}
    search = ExactSearch(expansions=4, at_once=1)
    (found,) = scripted_generator([table_rule(table, vocab=6)], search, 1, **options).generate(batch_of([(4, 2)]))
    assert_same_pairs(as_pairs(found), [((5, EOS), math.log(0.36))])
    assert found[0].positional_scores.tolist() == pytest.approx([math.log(0.4), math.log(0.9)])


def test_no_possible_output() -> None:
    words = ["<s>", "</s>", "<unk>", "w0", "w1"]
    forbidden = scripted_generator([RULE], ExactSearch(at_once=4), 2, words=2, tokens_to_suppress=words, max_len_b=4)
    assert forbidden.generate(batch_of([(4, 2), (2,)])) == [[], []]


FALLING: dict[str, Any] = {"len_penalty": 0.0, "semantics": "huggingface", "early_stopping": "never"}


def decode(search: Any, name: str = "transformer_tiny", **options: Any) -> list[list[Hypothesis]]:
    values = {"beam_size": 4, "max_len_a": 1.0, "max_len_b": 4, **FALLING, **options}
    generator = make_generator([sharp(name, seed=3)], dictionary(VOCAB - 4), search_strategy=search, **values)
    return generator.generate(batch_of(sources(7, seed=6)))


@pytest.mark.parametrize("at_once", [1, 5])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("transformer_tiny", {"beam_size": 1}),
        ("transformer_tiny", {"min_len": 4, "unk_penalty": 0.5}),
        ("t5_tiny", {"beam_size": 7}),
        ("fconv_uneven", {"tokens_to_suppress": ["w3"], "temperature": 1.5}),
    ],
)
def test_best_first_beams_are_those_of_beam_search(name: str, options: dict[str, Any], at_once: int) -> None:
    assert_same(decode(BestFirstBeamSearch(at_once), name, **options), decode(BeamSearch(), name, **options), 1e-6)


def test_best_first_expansions_and_outputs_by_fairseqs_rules() -> None:
    """Several at once are expanded before it is known whether all are needed; outputs are never worse than usual."""
    one, several = BestFirstBeamSearch(at_once=1), BestFirstBeamSearch(at_once=8)
    assert all(all(decode(search, beam_size=3, max_len_a=0.0, max_len_b=9)) for search in (one, several))
    assert 0 < one.expansions < several.expansions
    found, usual = (decode(search, semantics="fairseq") for search in (BestFirstBeamSearch(), BeamSearch()))
    assert all(one[0].score >= two[0].score - 1e-6 for one, two in zip(found, usual, strict=True))


def lattice(source: Any, budget: int, ngram: int, tolerance: int, width: int) -> dict[tuple[int, ...], float]:
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
def test_lattice_search(budget: int, ngram: int, tolerance: int, width: int) -> None:
    search = LatticeSearch(ngram, tolerance, width, budget, paths=100_000)
    generator = scripted_generator([RULE], search, 5000, words=2, max_len_b=4, normalize_scores=False)
    for source, hypotheses in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
        wanted = lattice(source, budget, ngram, tolerance, width)
        assert dict(as_pairs(hypotheses)) == pytest.approx(wanted)
        assert [h.score for h in hypotheses] == pytest.approx(sorted(wanted.values(), reverse=True))


# --- beam search with another choice, against the same as loops over one sentence


pytestmark = pytest.mark.slow

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
SCORES = random_rule(vocab=9, seed=4)
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
        words = [math.exp(next_scores(SCORES, source, tokens[:-1], cfg)[tokens[-1]]) for _, tokens in found]
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


def lookahead(depth: int, weight: float) -> Choose:
    """Ranks by the score of the greedy continuation, too."""

    def choose(found: list[Beam], source: tuple[int, ...], beam: int) -> list[Beam | None]:
        cfg = Settings(max_len=LONGEST, min_len=0)

        def ahead(history: tuple[int, ...]) -> float:
            total = 0.0
            for _ in range(depth):
                if history[-1] != EOS:
                    scores = next_scores(SCORES, source, history, cfg)
                    best = max(scores)
                    total, history = total + best, (*history, scores.index(best))
            return total

        return [*sorted(found[: 2 * beam], key=lambda one: -one[0] - weight * ahead(one[1]))]

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
    found = scripted_generator([SCORES], BeamSearch(), beam, **options).generate(batch_of(SOURCES))
    return [[hypothesis.tokens.tolist() for hypothesis in line] for line in found]


@pytest.mark.parametrize("skip_log_softmax", [True, False])
@pytest.mark.parametrize(
    ("search", "choose"),
    [
        (ConformalPruning(THRESHOLDS), conformal(THRESHOLDS)),
        *((ThresholdPruning(*values), threshold_pruning(*values)) for values in PRUNING),
        *((DeterminantalBeams(*values), determinantal(*values)) for values in DETERMINANTAL),
        *((Lookahead(*values), lookahead(*values)) for values in ((1, 0.5), (4, 1.0), (9, 2.0))),
    ],
)
def test_candidates_are_those_of_the_paper(search: Search, choose: Choose, skip_log_softmax: bool) -> None:
    generator = scripted_generator([SCORES], search, 4, skip_log_softmax=skip_log_softmax)
    found = [as_pairs(hypotheses) for hypotheses in generator.generate(batch_of(SOURCES))]
    cfg = Settings(4, max_len=LONGEST, min_len=0)
    for source, pairs in zip(SOURCES, found, strict=True):
        assert_same_pairs(pairs, beam_search(SCORES, source, cfg, functools.partial(choose, source=source, beam=4)))
    assert [[list(tokens) for tokens, _ in pairs] for pairs in found] != beam_search_tokens(4)


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
