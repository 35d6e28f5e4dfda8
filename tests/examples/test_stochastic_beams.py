"""Beams of examples/papers that are drawn without replacement, against all orders, sets and ways of a small search."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping

import pytest
import torch

from examples.papers.poisson_beams import PoissonBeams, sample
from examples.papers.stochastic_beam import StochasticBeam
from seqgen.core.search import Search
from seqgen.core.structures import Hypothesis
from seqgen.decoding.search.sampling import uniform
from tests.generation.test_sampling import chi_square, without_replacement
from tests.generators import scripted_generator
from tests.scripted_model import batch_of, table_rule

pytestmark = pytest.mark.slow

EOS = 2

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
