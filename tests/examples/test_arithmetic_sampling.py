"""examples/papers/arithmetic_sampling.py against inverting the cumulative distribution over all outputs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from examples.papers.arithmetic_sampling import ArithmeticSampling
from seqgen.core.errors import ConfigError
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Batch, Hypothesis
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule
from tests.step_contexts import batch_info
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
LIMITS: dict[str, Any] = {"max_len_b": 3, "min_len": 0}


def generator(
    models: list[ScriptedModel], beam: int, seed: int = 1, words: int = 2, **options: Any
) -> SequenceGenerator:
    search = ArithmeticSampling(options.pop("resolution", 0.0), seed)
    return make_generator(models, dictionary(words), search_strategy=search, beam_size=beam, **{**LIMITS, **options})


def codes(batch: Batch, beam: int, seed: int = 1) -> list[list[float]]:
    info = batch_info(batch.num_sentences, beam, ids=batch.ids)
    return ArithmeticSampling(seed=seed).begin(info).codes.tolist()


def intervals(rule: Rule, source: tuple[int, ...]) -> list[tuple[tuple[int, ...], float]]:
    """All outputs in the order of the vocabulary, and where the interval of each ends."""
    cfg = Settings(max_len=3, min_len=0)
    found: list[tuple[tuple[int, ...], float]] = []

    def visit(history: tuple[int, ...], mass: float) -> None:
        scores = next_scores(rule, source, history, cfg)
        total = sum(math.exp(score) for score in scores)
        for token, score in enumerate(scores):
            share = mass * math.exp(score) / total
            if token == EOS:
                found.append(((*history, token), share))
            elif share > 0:
                visit((*history, token), share)

    visit((), 1.0)
    ends = itertools.accumulate(share for _, share in found)
    return list(zip((output for output, _ in found), ends, strict=True))


def drawn(hypotheses: list[Hypothesis]) -> list[tuple[int, ...]]:
    return sorted(tuple(h.tokens.tolist()) for h in hypotheses)


@pytest.mark.parametrize("beam", [1, 5, 40])
def test_each_sample_owns_its_code(beam: int) -> None:
    rule, batch = random_rule(vocab=6, seed=3), batch_of(SOURCES)
    results = generator([ScriptedModel(rule)], beam).generate(batch)
    for source, own, hypotheses in zip(SOURCES, codes(batch, beam), results, strict=True):
        owned = intervals(rule, source)
        wanted = sorted(next(output for output, end in owned if code < end) for code in own)
        assert drawn(hypotheses) == wanted
        counts = {output: wanted.count(output) for output, _ in owned}
        starts = [0.0, *(end for _, end in owned)]
        for (output, end), start in zip(owned, starts, strict=False):
            assert abs(counts[output] - beam * (end - start)) < 1 + 1e-9, "the codes are spread evenly"


def test_rounding_does_not_change_outputs() -> None:
    """Codes that are never drawn again double their rounding error with each bit."""
    exact = random_rule(vocab=9, seed=2, sharpness=0.5)
    disturbed = random_rule(vocab=9, seed=5)
    models = [ScriptedModel(exact), ScriptedModel(lambda src, past: exact(src, past) + 1e-9 * disturbed(src, past))]
    options = {"words": 5, "max_len_b": 25, "min_len": 25}
    for resolution, same in ((2.0**-12, True), (0.0, False)):
        one, two = (
            generator([model], 4, resolution=resolution, **options).generate(batch_of(SOURCES[:2])) for model in models
        )
        assert (list(map(drawn, one)) == list(map(drawn, two))) is same


def test_by_its_keys() -> None:
    translator = Translator(text_model(), beam=5, nbest=5, max_len_b=8)
    found = translator.translate(TEXTS, search="arithmetic", **{"search.seed": 4, "search.resolution": 0.01})
    by_object = translator.translate(TEXTS, search=ArithmeticSampling(0.01, 4))
    assert [line.hypotheses[0].text for line in found] == [line.hypotheses[0].text for line in by_object]
    with pytest.raises(ConfigError, match="unknown key 'sede'"):
        translator.translate(TEXTS, search="arithmetic", **{"search.sede": 4})
