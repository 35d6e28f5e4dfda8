"""Context-aware decoding against enumeration, and by its keys."""

from __future__ import annotations

import pytest
import torch

from examples.papers.context_aware import ContextAware
from seqgen.text.translator import Translator
from tests.exhaustive import ranked_outputs
from tests.generators import make_generator
from tests.hypotheses import as_pairs, assert_same_pairs
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

WORDS = dictionary(2)
RULES = [random_rule(len(WORDS), seed) for seed in (1, 2)]
SOURCES = [(4, 5, 2), (5, 2)]


def test_is_the_formula_by_enumeration() -> None:
    def formula(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        with_context, without = (rule(source, history) for rule in RULES)  # the paper contrasts logits
        return ((1 + 0.8) * with_context - 0.8 * without).log_softmax(-1)

    models = [ScriptedModel(rule) for rule in RULES]
    generator = make_generator(models, WORDS, beam_size=100, max_len_b=3, combination=ContextAware(0.8))
    for source, found in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
        assert_same_pairs(as_pairs(found)[:20], ranked_outputs(formula, source, len(WORDS), 3, 20))


@pytest.mark.parametrize("name", ["transformer_tiny", "transformer_lm_tiny"])
def test_fields_alone_and_in_a_batch(name: str) -> None:
    model = text_model(name, sharpness=1.2)
    options = {"beam": 4, "max_len_b": 6, "member_sources": ["field1", "field2"], "combination": "context_aware"}
    lines = [f"w9 w8 {text}\t{text}" for text in TEXTS]
    translator = Translator([model, model], **options)
    together = translator.translate(lines, **{"combination.alpha": 1.5})
    for line, translation in zip(lines, together, strict=True):
        (alone,) = translator.translate([line], **{"combination.alpha": 1.5})
        assert alone.text == translation.text
        assert alone.score == pytest.approx(translation.score, abs=1e-5)
    plain = Translator(model, beam=4, max_len_b=6).translate([line.split("\t")[0] for line in lines])
    without = translator.translate(lines, **{"combination.alpha": 0.0})
    assert [line.text for line in without] == [line.text for line in plain]
    assert [line.score for line in together] != pytest.approx([line.score for line in plain], abs=1e-3)
