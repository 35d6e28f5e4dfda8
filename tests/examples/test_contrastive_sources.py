"""Source-contrastive and language-contrastive decoding against enumeration and plain ensembles of two fields."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.papers.contrastive_sources import Contrast, LanguageTag, RandomLine
from seqgen.text.results import Translation
from seqgen.text.translator import Translator
from tests.exhaustive import ranked_outputs
from tests.generators import make_generator
from tests.hypotheses import as_pairs, assert_same_pairs
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

WORDS = dictionary(2)
RULES = [random_rule(len(WORDS), seed, sharpness=1.0) for seed in (1, 2, 3)]
SOURCES = [(4, 5, 2), (5, 2)]
OPTIONS = {"beam": 4, "nbest": 4, "max_len_b": 6}


def shown(translations: list[Translation]) -> list[list[tuple[list[int], float]]]:
    return [[(h.tokens.tolist(), pytest.approx(h.score, abs=1e-5)) for h in line.hypotheses] for line in translations]


@pytest.mark.parametrize("weights", [[0.3, 0.1], [0.4]])
def test_is_the_formula_by_enumeration(weights: list[float]) -> None:
    def formula(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        p, q, r = (rule(source, history).softmax(-1) for rule in RULES)
        rest = p - weights[0] * q - weights[-1] * r
        return rest.where(rest > 0, torch.finfo(rest.dtype).tiny).log()

    models = [ScriptedModel(rule) for rule in RULES]
    generator = make_generator(models, WORDS, beam_size=100, max_len_b=3, combination=Contrast(weights))
    for source, found in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
        assert_same_pairs(as_pairs(found)[:10], ranked_outputs(formula, source, len(WORDS), 3, 10))


@pytest.mark.parametrize("batch_size", [1, 64])
def test_a_random_line_is_a_second_field(batch_size: int, tmp_path: Path) -> None:
    """The keys give the same as two fields that the test pairs itself, whatever the batch."""
    model, file = text_model(sharpness=1.2), tmp_path / "lines"
    file.write_text("\n".join(["w9 w8", "w5 w4 w3 w10", *TEXTS]) + "\n")
    keys = {"source.random_line.file": str(file), "source.random_line.seed": 7, "combination.weights": [0.5]}
    translator = Translator([model, model], combination="contrast", batch_size=batch_size, **OPTIONS)
    found = translator.translate(TEXTS, member_sources=["input", "random_line"], **keys)
    source = RandomLine(["w9 w8", "w5 w4 w3 w10", *TEXTS], seed=7)
    pairs = [f"{text}\t{source(text, number)}" for number, text in enumerate(TEXTS)]
    assert all(len(set(pair.split("\t"))) == 2 for pair in pairs)
    by_field = translator.translate(pairs, member_sources=["field1", "field2"], **{"combination.weights": [0.5]})
    assert shown(found) == shown(by_field)
    assert shown(found) != shown(Translator(model, **OPTIONS).translate(TEXTS))


def test_a_language_tag_replaces_the_first_word() -> None:
    assert LanguageTag("<2en>")("<2de> a dog", 3) == "<2en> a dog"
    model = text_model(sharpness=1.2)
    translator = Translator([model, model], combination=Contrast([0.4]), **OPTIONS)
    found = translator.translate(TEXTS, member_sources=["input", "language_tag"], **{"source.language_tag.tag": "w9"})
    pairs = ["\t".join([text, " ".join(["w9", *text.split()[1:]])]) for text in TEXTS]
    assert shown(found) == shown(translator.translate(pairs, member_sources=["field1", "field2"]))


def test_known_targets_are_scored_with_the_registered_source() -> None:
    model = text_model(sharpness=1.2)
    tag = {"source.language_tag.tag": "w9"}
    translator = Translator(
        [model, model], combination=Contrast([0.4]), member_sources=["input", "language_tag"], **tag
    )
    pairs = Translator([model, model], combination=Contrast([0.4]), member_sources=["field1", "field2"])
    (found,) = translator.score(["w1 w5"], ["w2 w3"])
    (expected,) = pairs.score(["w1 w5\tw9 w5"], ["w2 w3"])
    assert found.score == pytest.approx(expected.score, abs=1e-6)
