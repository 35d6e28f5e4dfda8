"""Arithmetic sampling and SMC steering (examples/papers) against the enumeration of all outputs of a tiny model."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.papers.arithmetic_sampling import ArithmeticSampling
from examples.papers.poisson_beams import PoissonBeams, sample
from examples.papers.smc_steering import SMCConfig, SMCSteering, resample
from examples.papers.stochastic_beam import StochasticBeam
from seqgen.extend import Hypothesis, Search, SequenceGenerator, StepContext, uniform
from seqgen.text.translator import Translator
from tests.generation.test_sampling import chi_square, without_replacement
from tests.generators import make_generator, resources, scripted_generator
from tests.hypotheses import assert_same
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule, table_rule
from tests.step_contexts import batch_info
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
RULE = random_rule(vocab=6, seed=3)
METHODS = ["optimal", "systematic", "multinomial"]

Outputs = list[tuple[tuple[int, ...], float]]


def every_output(source: tuple[int, ...], normalized: bool) -> Outputs:
    """All outputs of at most three words in the order of the vocabulary, and the products of their probabilities.

    The probability of padding, which is never generated, is lost unless the others are normalized.
    """
    found: Outputs = []

    def visit(history: tuple[int, ...], mass: float) -> None:
        scores = next_scores(RULE, source, history, Settings(max_len=3, min_len=0))
        total = sum(math.exp(score) for score in scores) if normalized else 1.0
        for token, score in enumerate(scores):
            share = mass * math.exp(score) / total
            if token == EOS:
                found.append(((*history, token), share))
            elif share > 0:
                visit((*history, token), share)

    visit((), 1.0)
    return found


def generator(rules: list[Rule], beam: int, search: Search, words: int = 2, **options: Any) -> SequenceGenerator:
    values = {"max_len_b": 3, "min_len": 0, **options}
    models = [ScriptedModel(cache(rule)) for rule in rules]
    return make_generator(models, dictionary(words), search_strategy=search, beam_size=beam, **values)


def drawn(hypotheses: list[Hypothesis]) -> list[tuple[int, ...]]:
    return sorted(tuple(h.tokens.tolist()) for h in hypotheses)


@pytest.mark.parametrize("beam", [1, 5, 40])
def test_each_sample_owns_its_code(beam: int) -> None:
    batch = batch_of(SOURCES)
    results = generator([RULE], beam, ArithmeticSampling(0.0, 1)).generate(batch)
    codes = ArithmeticSampling(seed=1).begin(batch_info(batch.num_sentences, beam, ids=batch.ids)).codes.tolist()
    for source, own, hypotheses in zip(SOURCES, codes, results, strict=True):
        outputs, shares = zip(*every_output(source, normalized=True), strict=True)
        ends = [*itertools.accumulate(shares)]
        wanted = sorted(next(output for output, end in zip(outputs, ends, strict=True) if code < end) for code in own)
        assert drawn(hypotheses) == wanted
        for output, share in zip(outputs, shares, strict=True):
            assert abs(wanted.count(output) - beam * share) < 1 + 1e-9, "the codes are spread evenly"


def test_rounding_does_not_change_outputs() -> None:
    """Codes that are never drawn again double their rounding error with each bit."""
    exact, disturbed = random_rule(vocab=9, seed=2, sharpness=0.5), random_rule(vocab=9, seed=5)
    rules = [exact, lambda source, past: exact(source, past) + 1e-9 * disturbed(source, past)]
    options = {"words": 5, "max_len_b": 25, "min_len": 25}
    for resolution, same in ((2.0**-12, True), (0.0, False)):
        search = ArithmeticSampling(resolution, 1)
        one, two = (generator([rule], 4, search, **options).generate(batch_of(SOURCES[:2])) for rule in rules)
        assert (list(map(drawn, one)) == list(map(drawn, two))) is same


class FewOfToken(SMCSteering):
    """Token 4 costs 1.5 nats; outputs that end with two equal words are impossible."""

    def potential(self, tokens: Tensor, context: StepContext) -> Tensor:
        return torch.tensor([log_potential(tuple(row)) for row in tokens.tolist()], dtype=torch.float64)


def few_of_token(**keys: Any) -> SMCSteering:
    return FewOfToken.build(SMCConfig(**keys), resources(dictionary(2)))


def log_potential(output: tuple[int, ...]) -> float:
    if output[-1] == EOS and len(output) > 2 and output[-2] == output[-3]:
        return -math.inf
    return -1.5 * output.count(4)


def posterior() -> dict[tuple[int, ...], float]:
    """``p(y) phi(y)`` of all outputs for the first source."""
    outputs = every_output(SOURCES[0], normalized=False)
    return {output: share * math.exp(log_potential(output)) for output, share in outputs}


def test_all_particles_are_the_posterior() -> None:
    """With a particle for each prefix and all tokens as children, weights are exact."""
    found = generator([RULE], 600, few_of_token(children=6)).generate(batch_of(SOURCES[:1]))[0]
    wanted = {output: value for output, value in posterior().items() if value > 0}
    assert {tuple(h.tokens.tolist()): math.exp(h.score) for h in found} == pytest.approx(wanted, rel=1e-9)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_unbiased(method: str) -> None:
    """Over many seeds, here lines, the mean weight of each output is ``p(y) phi(y)``."""
    lines = 600
    search = few_of_token(children=2, resampling=method)
    results = generator([RULE], 3, search).generate(batch_of(SOURCES[:1] * lines))
    samples: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0] * lines)
    for line, hypotheses in enumerate(results):
        outputs = [tuple(h.tokens.tolist()) for h in hypotheses]
        assert method != "optimal" or len(set(outputs)) == len(outputs)
        for output, hypothesis in zip(outputs, hypotheses, strict=True):
            samples[output][line] += math.exp(hypothesis.score)
    wanted = posterior()
    assert set(samples) <= {output for output, value in wanted.items() if value > 0}
    totals = torch.tensor([sum(values) for values in zip(*samples.values(), strict=True)])
    assert abs(totals.mean() - sum(wanted.values())) < 4 * totals.std() / math.sqrt(lines)
    for output, value in wanted.items():
        own = torch.tensor(samples[output])
        assert abs(own.mean() - value) < 5 * own.std() / math.sqrt(lines) + 2e-3


@pytest.mark.parametrize("count", [1, 3, 7, 12])
def test_resampling(count: int) -> None:
    """The probability of being drawn is ``min(1, c w)``, with ``c`` found by bisection."""
    weights = torch.tensor([0.3, 5.0, 0.0, 0.2, 1.0, 0.05, 2.0, 0.9], dtype=torch.float64)
    draws = 4000
    points = ((torch.arange(draws) + 0.5) / draws).unsqueeze(1) + torch.arange(count)
    drawn, logs = resample(weights.log().expand(draws, -1), count, points)
    exists = logs > -math.inf
    assert (exists.sum(1) == min(count, 7)).all()
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (middle * weights).clamp(max=1).sum() < min(count, 7 - 1e-9) else (low, middle)
    expected = (high * weights).clamp(max=1)
    for item in range(8):
        chosen = (drawn == item) & exists
        assert int(chosen.sum(1).max()) <= 1
        assert float(chosen.double().sum() / draws) == pytest.approx(float(expected[item]), abs=1e-3)
        wanted = float(weights[item] / expected[item]) if weights[item] > 0 else 0.0
        torch.testing.assert_close(logs[chosen].exp(), torch.full_like(logs[chosen], wanted))


@pytest.mark.parametrize("method", METHODS)
def test_alone_in_a_batch_and_in_an_ensemble(method: str) -> None:
    rules, sources = [random_rule(9, seed) for seed in (1, 2)], [*SOURCES, *((5, 6, 7, 8, n, 2) for n in range(4, 9))]
    batch = replace(batch_of(sources), ids=torch.tensor([7, 3, 12, 5, 6, 1, 0, 2, 9]))
    for members in (rules[:1], rules):
        own = generator(members, 4, few_of_token(resampling=method), 5, max_len_a=1.0, max_len_b=3)
        together = own.generate(batch)
        assert len({len(h.tokens) for hypotheses in together for h in hypotheses}) > 2
        for row, source in enumerate(sources):
            alone = own.generate(replace(batch_of([source]), ids=batch.ids[row : row + 1]))
            assert_same(alone, together[row : row + 1])


def test_short_words_by_its_keys() -> None:
    """The example finds outputs with fewer long words, and its weights are those of the formula."""
    translator = Translator(text_model(), beam=6, nbest=6, max_len_b=6)
    for penalty in (0.0, 60.0):
        keys = {"search.longest": 2, "search.penalty": penalty, "search.children": 5}
        found = translator.translate(TEXTS, search="short_words", **keys)
        words = [word for line in found for item in line.hypotheses for word in item.text.split()]
        long = sum(len(word) > 2 for word in words) / len(words)
        assert long == 0 if penalty else long > 0.1


# --- beams that are drawn without replacement, against all orders, sets and ways of a small search


pytestmark = pytest.mark.slow


TABLE = {(): {4: 0.5, 5: 0.3, EOS: 0.2}, (4,): {EOS: 0.6, 4: 0.1, 5: 0.3}, (5,): {EOS: 0.5, 5: 0.5}}
TABLE |= {(4, 5): {EOS: 0.7, 5: 0.3}, (4, 4): {EOS: 1.0}, (5, 5): {EOS: 1.0}, (4, 5, 5): {EOS: 1.0}}
OUTPUTS = {(EOS,): 0.2, (4, EOS): 0.3, (5, EOS): 0.15, (4, 4, EOS): 0.05, (4, 5, EOS): 0.105}
OUTPUTS |= {(5, 5, EOS): 0.15, (4, 5, 5, EOS): 0.045}


def decode(search: Search, beam: int, semantics: str, sentences: int) -> list[list[Hypothesis]]:
    options = {"words": 2, "max_len_b": 8, "normalize_scores": False, "semantics": semantics}
    generator = scripted_generator([table_rule(TABLE, 6)], search, beam, **options)
    return generator.generate(batch_of([(4, EOS)] * sentences))


def assert_fits(found: Counter[Hashable], wanted: Mapping[Hashable, float]) -> None:
    """The counts fit the probabilities; those that are expected at most 5 times are counted together."""
    assert set(found) <= {key for key, chance in wanted.items() if chance > 0}
    chances = torch.tensor(list(wanted.values()), dtype=torch.float64)
    counts = torch.tensor([found[key] for key in wanted], dtype=torch.float64)
    often = chances * found.total() > 5
    counts, chances = (torch.cat([values[often], values[~often].sum().view(1)]) for values in (counts, chances))
    assert len(wanted) == 1 or abs(chi_square(counts, chances)) < 4


BEAMS = [*itertools.product((1, 2, 3), ("fairseq", "huggingface"))]
every_beam = pytest.mark.parametrize(("beam", "semantics"), BEAMS)


@every_beam
def test_stochastic_beams_are_drawn_without_replacement(beam: int, semantics: str) -> None:
    """How often each set of outputs comes, against all orders in which its members can be drawn."""
    found: Counter[Hashable] = Counter()
    for hypotheses in decode(StochasticBeam(11), beam, semantics, 1500):
        outputs = [tuple(h.tokens.tolist()) for h in hypotheses]
        assert len(set(outputs)) == len(outputs) == beam
        assert [h.score for h in hypotheses] == pytest.approx([math.log(OUTPUTS[output]) for output in outputs])
        found[frozenset(outputs)] += 1
    names, wanted = list(OUTPUTS), defaultdict[Hashable, float](float)
    for order, chance in without_replacement(list(OUTPUTS.values()), beam).items():
        wanted[frozenset(names[i] for i in order)] += chance
    assert_fits(found, wanted)


Beam = frozenset[tuple[tuple[int, ...], float]]
"""Prefixes and ended outputs, each with the log of its inclusion probability, rounded."""


def sets_of(odds: list[float], count: int) -> dict[tuple[int, ...], float]:
    """The probability of each set of ``count`` items."""
    chosen = itertools.combinations(range(len(odds)), count)
    weights = {items: math.prod(odds[item] for item in items) for items in chosen}
    total = sum(weights.values())
    return {items: weight / total for items, weight in weights.items() if weight > 0}


def test_inclusion_probabilities_of_poisson_sets_are_those_of_the_formula() -> None:
    odds = [0.2, 0.0, 1e8, 3.0, 0.7, 1.5, 0.9]  # one is impossible, and one nearly certain
    numbers = uniform(5, torch.arange(200).view(-1, 1, 1), torch.arange(4).unsqueeze(1), torch.arange(3))
    drawn, included = sample(torch.tensor(odds, dtype=torch.float64).log().expand(200, -1), 3, numbers)
    wanted = sets_of(odds, 3)
    for row, found in zip(drawn.tolist(), included.exp().tolist(), strict=True):
        assert tuple(sorted(row)) in wanted
        inclusion = [sum(p for chosen, p in wanted.items() if item in chosen) for item in row]
        assert found == pytest.approx(inclusion, abs=1e-9)


def ways(beam: int) -> dict[Beam, float]:
    """The probability of each result of the search, by following all sets of all steps."""
    beams: dict[Beam, float] = {frozenset({((), 0.0)}): 1.0}
    for _ in range(4):
        following: dict[Beam, float] = defaultdict(float)
        for state, chance in beams.items():
            candidates: list[tuple[tuple[int, ...], float, float]] = []
            for prefix, log_pi in state:
                if prefix[-1:] == (EOS,):
                    candidates.append((prefix, OUTPUTS[prefix], log_pi))
                    continue
                p = math.prod(TABLE[prefix[:t]][prefix[t]] for t in range(len(prefix)))
                candidates += [((*prefix, token), p * q, log_pi) for token, q in TABLE[prefix].items()]
            odds = [p / (1 - p) for _, p, _ in candidates]
            sets = sets_of(odds, min(beam, len(odds)))
            for chosen, own in sets.items():
                pi = [sum(p for each, p in sets.items() if item in each) for item in chosen]
                pairs = zip(chosen, pi, strict=True)
                key = frozenset((candidates[n][0], round(candidates[n][2] + math.log(value), 9)) for n, value in pairs)
                following[key] += chance * own
        beams = following
    return beams


@every_beam
def test_results_of_poisson_beams_and_their_inclusion_probabilities(beam: int, semantics: str) -> None:
    """How often each set of outputs comes with which inclusion probabilities; and the estimate is unbiased."""
    sentences, wanted = 2000, ways(beam)
    found: Counter[Hashable] = Counter()
    weights: dict[tuple[int, ...], list[float]] = {output: [0.0] * sentences for output in OUTPUTS}
    for line, hypotheses in enumerate(decode(PoissonBeams(5), beam, semantics, sentences)):
        assert len(hypotheses) == beam
        result = {}
        for hypothesis in hypotheses:
            output = tuple(hypothesis.tokens.tolist())
            log_pi = float(hypothesis.fields["log_inclusion"][-1])
            assert hypothesis.fields["log_inclusion"].shape == hypothesis.tokens.shape
            assert hypothesis.score == pytest.approx(math.log(OUTPUTS[output]) - log_pi, abs=1e-6)
            result[output] = log_pi
            weights[output][line] = math.exp(hypothesis.score)
        near = [key for key in wanted if dict(key) == pytest.approx(result, abs=1e-5)]
        assert near, f"no way of the search gives {result}"
        found[near[0]] += 1
    assert_fits(found, wanted)
    for output, p in OUTPUTS.items():
        own = torch.tensor(weights[output], dtype=torch.float64)
        assert abs(own.mean() - p) < 4 * own.std() / math.sqrt(sentences)
