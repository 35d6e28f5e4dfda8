"""Density-ratio fusion against enumeration, and with language models as members."""

from __future__ import annotations

import pytest
import torch

from examples.papers.shallow_fusion import DensityRatio
from seqgen.text.members import ModelInMemory
from seqgen.text.translator import Translator
from tests.exhaustive import ranked_outputs
from tests.generators import make_generator
from tests.hypotheses import as_pairs, assert_same_pairs
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

WORDS = dictionary(2)
RULES = [random_rule(len(WORDS), seed) for seed in (1, 2, 3)]
SOURCES = [(4, 5, 2), (5, 2)]
OPTIONS = {"beam": 4, "nbest": 4, "max_len_b": 6}


def test_is_the_formula_by_enumeration() -> None:
    combination = DensityRatio(source_weight=0.4, target_weight=0.7)

    def formula(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        p, p_source, p_target = (rule(source, history).softmax(-1) for rule in RULES)
        return (p / p_source**0.4 * p_target**0.7).log()

    models = [ScriptedModel(rule) for rule in RULES]
    generator = make_generator(models, WORDS, beam_size=100, max_len_b=3, combination=combination)
    for source, found in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
        assert_same_pairs(as_pairs(found)[:20], ranked_outputs(formula, source, len(WORDS), 3, 20))


@pytest.fixture(scope="module")
def models() -> list[ModelInMemory]:
    names = ["transformer_tiny", "transformer_lm_tiny", "transformer_lm_tiny"]
    return [text_model(name, seed=seed, sharpness=1.2) for seed, name in enumerate(names)]


def test_decoder_only_language_models_as_members(models: list[ModelInMemory]) -> None:
    keys = {"combination": "density_ratio", "combination.source_weight": 0.3, "combination.target_weight": 0.6}
    translator = Translator(models, member_sources=["input", "empty", "empty"], **OPTIONS, **keys)
    plain = Translator(models[0], **OPTIONS).translate(TEXTS)
    together = translator.translate(TEXTS)
    assert [line.text for line in together] != [line.text for line in plain]
    for text, line in zip(TEXTS, together, strict=True):
        (alone,) = translator.translate([text], batch_size=1)
        assert [h.tokens.tolist() for h in alone.hypotheses] == [h.tokens.tolist() for h in line.hypotheses]
        assert [h.score for h in alone.hypotheses] == pytest.approx([h.score for h in line.hypotheses], abs=1e-5)
        best = line.hypotheses[0]
        prefix = torch.cat([torch.tensor([2]), best.tokens[:-1]]).unsqueeze(0)
        expected = torch.zeros(len(best.tokens), dtype=torch.float64)
        for model, weight in zip(models, (1.0, -0.3, 0.6), strict=True):
            source = model.task.encode_source(text if weight == 1.0 else "").unsqueeze(0)
            with torch.no_grad():
                logits = model.model(source, torch.tensor([source.size(1)]), prefix).logits[0]
                expected += weight * logits.log_softmax(-1).gather(1, best.tokens.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(best.positional_scores.double(), expected, atol=1e-5, rtol=0)
