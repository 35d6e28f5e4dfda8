"""examples/papers/poisson_beams.py against the enumeration of all sets, and of all ways of a small search."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch

from examples.papers.poisson_beams import PoissonBeams, sample
from seqgen.core.errors import ConfigError
from seqgen.decoding.search.sampling import uniform
from seqgen.text.output_formats import FORMATS
from seqgen.text.translator import Translator
from tests.examples.test_stochastic_beam import EOS, OUTPUTS, TABLE
from tests.generation.test_sampling import chi_square
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule, table_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

Beam = frozenset[tuple[tuple[int, ...], float]]
"""Prefixes and ended outputs, each with the log of its inclusion probability, rounded."""


def sets_of(odds: list[float], count: int) -> dict[tuple[int, ...], float]:
    """The probability of each set of ``count`` items."""
    weights = {
        chosen: math.prod(odds[item] for item in chosen) for chosen in itertools.combinations(range(len(odds)), count)
    }
    total = sum(weights.values())
    return {chosen: weight / total for chosen, weight in weights.items() if weight > 0}


@pytest.mark.parametrize(("items", "count"), [(1, 1), (2, 3), (5, 2), (7, 3), (9, 4), (6, 6)])
def test_sets_are_those_of_the_formula(items: int, count: int) -> None:
    rows = 8000
    odds = (3 * uniform(items, 7, torch.arange(items)) - 1).exp().tolist()
    if items > 4:
        odds[1] = 0.0  # impossible
        odds[2] = 1e8  # nearly certain
    logs = torch.tensor(odds, dtype=torch.float64).log().expand(rows, -1)

    numbers = uniform(5, torch.arange(rows).view(-1, 1, 1), torch.arange(4).unsqueeze(1), torch.arange(count))
    drawn, included = sample(logs, count, numbers)
    wanted = sets_of(odds, min(count, sum(odd > 0 for odd in odds)))
    inclusion = [sum(p for chosen, p in wanted.items() if item in chosen) for item in range(items)]
    found: Counter[tuple[int, ...]] = Counter()
    for row, logs_of_row in zip(drawn.tolist(), included.tolist(), strict=True):
        pairs = [(item, value) for item, value in zip(row, logs_of_row, strict=True) if value > -math.inf]
        found[tuple(sorted(item for item, _ in pairs))] += 1
        assert [value for _, value in pairs] == pytest.approx(
            [math.log(inclusion[item]) for item, _ in pairs], abs=1e-9
        )
    assert set(found) <= set(wanted)
    if len(wanted) > 1:
        expected = torch.tensor(list(wanted.values()), dtype=torch.float64)
        often = expected * rows > 5
        counts = torch.tensor([found[chosen] for chosen in wanted], dtype=torch.float64)
        merged = [torch.cat([values[often], values[~often].sum().view(1)]) for values in (counts, expected)]
        kept = merged[1] > 0
        assert abs(chi_square(merged[0][kept], merged[1][kept])) < 4


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


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("beam", [1, 2, 3])
def test_results_and_their_inclusion_probabilities(beam: int, semantics: str) -> None:
    """How often each set of outputs comes with which inclusion probabilities; and the estimate is unbiased."""
    sentences = 2000
    generator = make_generator(
        [ScriptedModel(table_rule(TABLE, 6))], dictionary(2), beam_size=beam, search_strategy=PoissonBeams(5),
        min_len=0, max_len_b=8, normalize_scores=False, semantics=semantics,
    )  # fmt: skip
    wanted = ways(beam)
    found: Counter[frozenset[tuple[tuple[int, ...], float]]] = Counter()
    weights: dict[tuple[int, ...], list[float]] = {output: [0.0] * sentences for output in OUTPUTS}
    for line, hypotheses in enumerate(generator.generate(batch_of([(4, EOS)] * sentences))):
        assert len(hypotheses) == beam
        result = []
        for hypothesis in hypotheses:
            output = tuple(hypothesis.tokens.tolist())
            log_pi = float(hypothesis.fields["log_inclusion"][-1])
            assert hypothesis.fields["log_inclusion"].shape == hypothesis.tokens.shape
            assert hypothesis.score == pytest.approx(math.log(OUTPUTS[output]) - log_pi, abs=1e-6)
            result.append((output, log_pi))
            weights[output][line] = math.exp(hypothesis.score)
        near = [key for key in wanted if {y for y, _ in key} == {y for y, _ in result} and close(key, dict(result))]
        assert near, f"no way of the search gives {result}"
        found[near[0]] += 1
    expected = torch.tensor(list(wanted.values()), dtype=torch.float64)
    often = expected * sentences > 5
    counts = torch.tensor([found[key] for key in wanted], dtype=torch.float64)
    merged = [torch.cat([values[often], values[~often].sum().view(1)]) for values in (counts, expected)]
    kept = merged[1] > 0
    assert abs(chi_square(merged[0][kept], merged[1][kept])) < 4
    for output, p in OUTPUTS.items():
        own = torch.tensor(weights[output], dtype=torch.float64)
        assert abs(own.mean() - p) < 4 * own.std() / math.sqrt(sentences)


def close(key: Beam, result: dict[tuple[int, ...], float]) -> bool:
    return all(abs(result[output] - log_pi) < 1e-5 for output, log_pi in key)


def test_alone_in_a_batch_and_in_an_ensemble() -> None:
    rules = [random_rule(9, seed) for seed in (1, 2)]
    sources = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,), *((5, 6, 7, 8, length, 2) for length in range(4, 9))]
    batch = replace(batch_of(sources), ids=torch.tensor([7, 3, 12, 5, 6, 1, 0, 2, 9]))
    for members in (rules[:1], rules):
        generator = make_generator(
            [ScriptedModel(rule) for rule in members], dictionary(5), beam_size=4, search_strategy=PoissonBeams(2),
            max_len_a=1.0, max_len_b=3, min_len=0,
        )  # fmt: skip
        together = generator.generate(batch)
        assert len({len(h.tokens) for hypotheses in together for h in hypotheses}) > 2
        for row, source in enumerate(sources):
            alone = generator.generate(replace(batch_of([source]), ids=batch.ids[row : row + 1]))
            assert_same(alone, together[row : row + 1])
            for one, two in zip(alone[0], together[row], strict=True):
                torch.testing.assert_close(one.fields, two.fields, atol=1e-6, rtol=0)


def test_keys_and_refusals() -> None:
    translator = Translator(text_model(), beam=4, nbest=4, max_len_b=6)
    decoding = translator.prepare(search="poisson_beams", **{"search.seed": 3})
    line = json.loads(FORMATS["json"](decoding, None)(next(iter(decoding.translate(TEXTS)))))
    for item in line["hypotheses"]:
        gap = sum(item["positional_scores"]) - item["score"]
        assert item["fields"]["log_inclusion"][-1] == pytest.approx(gap, abs=1e-5)
    with pytest.raises(ConfigError, match="remove length_penalty"):
        translator.translate(TEXTS, search="poisson_beams", length_penalty=2.0)
