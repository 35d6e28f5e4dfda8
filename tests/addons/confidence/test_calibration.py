"""Calibration: the probabilities of a known law, the promise of conformal risk control, and marks."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqgen.addons.confidence import calibration as module
from seqgen.addons.confidence.calibration import Calibration, fit_calibration, measure_quality, weights_fingerprint
from seqgen.config.values import LARGEST_FLOAT
from seqgen.extend import Chrf, ConfigError, GenerationConfig, InputLine
from seqgen.text.translator import Translator
from tests.addons.confidence.conftest import MADE
from tests.text_models import TEXTS, text_model


def law(count: int, seed: int) -> tuple[Any, Any, Any]:
    """Features, whether an output is good, and the true probability of that: a sigmoid of the first two features."""
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(count, 3)) * [1, 10, 3] + [5, 0, 0]
    logits = 1.2 * (values[:, 0] - 5) - 0.1 * values[:, 1] + 0.7
    true = 1 / (1 + np.exp(-logits))
    return values, draw.random(count) < true, true


def test_probabilities_are_those_of_the_law() -> None:
    values, good, _ = law(8000, 0)
    found = fit_calibration(values, good.astype(float), 1.0)
    fresh, _, true = law(2000, 1)
    assert np.abs(found.probabilities(fresh) - true).max() < 0.06
    assert found.lines == 4000
    assert len(found.bad) == pytest.approx(4000 * (1 - good.mean()), rel=0.05)


def test_a_constant_feature_has_no_weight() -> None:
    """The standard deviation of equal values is not exactly 0, because their mean is rounded."""
    values, good, _ = law(400, 6)
    values[:, 1], values[:, 2] = math.log(7.3), 100 / 3
    assert 0 < values.std(0)[1:].max() < 1e-12
    found = fit_calibration(values, good.astype(float), 1.0)
    assert found.weights[1:] == [0, 0]
    assert found.probabilities(values + np.array([0, 1, -50])) == pytest.approx(found.probabilities(values))


def test_the_formula_of_a_probability() -> None:
    logit = 0.3 + 1.5 * (-0.4 + 0.5) / 0.2 - 0.25 * (-8 + 7) / 3
    assert MADE.probabilities(np.array([[-0.4, -8.0]])) == pytest.approx([1 / (1 + math.exp(-logit))])
    assert MADE.probabilities(np.array([[1e6, 0.0], [-1e6, 0.0]])).tolist() == [1.0, 0.0]
    large, least = LARGEST_FLOAT, module.SMALLEST
    made = replace(MADE, scales=[least, least], weights=[large, -large], centers=[large, large])
    assert np.isfinite(made.probabilities(np.array([[-large, -large]]))).all()


@pytest.mark.parametrize(("lines", "risk"), [(50, 0.1), (200, 0.05), (39, 0.025)])
def test_the_promised_risk_is_kept_over_many_splits(lines: int, risk: float) -> None:
    """It is nearly exhausted, too: by the theorem, the risk is at least the promised one less 2 / (lines + 1)."""
    fresh, good, _ = law(4000, 2)
    values, reached, _ = law(400, 3)
    first = fit_calibration(values, reached.astype(float), 1.0)
    confidence = first.probabilities(fresh)
    draw, risks = np.random.default_rng(4), []
    for _ in range(300):
        order = draw.permutation(len(good))
        held_out, new = order[:lines], order[lines:]
        bad = sorted(confidence[held_out[~good[held_out]]].tolist())
        threshold = replace(first, good=[1.0] * (lines - len(bad)), bad=bad).risk_threshold(risk)
        risks.append(float(((confidence[new] > threshold) & ~good[new]).mean()))
    error = float(np.std(risks)) / math.sqrt(len(risks))
    assert np.mean(risks) <= risk + 3 * error
    assert np.mean(risks) >= risk - 2 / (lines + 1) - 3 * error


def test_thresholds_by_hand() -> None:
    """Of 199 lines, (k + 1) / 200 bounds the risk if k bad ones are above the threshold."""
    assert list(map(MADE.risk_threshold, (0.005, 0.0099, 0.01, 0.015, 0.02))) == [0.6, 0.6, 0.3, 0.1, -1]
    assert replace(MADE, good=[0.9] * 996).risk_threshold(0.001) == 0.6, "the smallest number of lines for this risk"
    shares = (1 / 199, 0.01, 2 / 199, 4 / 199, 0.999, 1)
    assert [MADE.share_threshold(share) for share in shares] == [0.1, 0.1, 0.3, 0.6, 0.9, 1.0]


def test_a_line_without_an_output_is_marked(calibration: Path) -> None:
    translator = Translator(text_model(), beam=3, confidence=str(calibration), review_risk=0.02)
    stages, line = translator.prepare().stages, InputLine(0, "w1", [torch.tensor([4, 2])])
    found = stages.write(line, line.translation(), of_search=True)
    assert (found.confidence, found.review) == (0.0, True)


def test_a_calibration_holds_for_other_keys_of_the_call_and_for_files_of_the_same_content(tmp_path: Path) -> None:
    of_the_call: dict[str, Any] = {"nbest": 2, "observers": ["x"], "batch_size": 3}
    cfg = GenerationConfig(beam=4, components={"search.groups": 2}, **of_the_call)
    MADE.check("abc", module.calibrated_settings(cfg))
    file, copy = tmp_path / "one", tmp_path / "two"
    for path in (file, copy):
        path.write_text("w1\tw2\n")
    one, two = (module.calibrated_settings(GenerationConfig(replace_unknown=str(path))) for path in (file, copy))
    file.write_text("w1\tw3\n")
    assert one == two != module.calibrated_settings(GenerationConfig(replace_unknown=str(file)))
    MADE.save(file)
    assert Calibration.load(file) == MADE


def test_by_default_all_but_the_worst_quarter_is_good_enough() -> None:
    qualities = np.random.default_rng(0).permutation(np.repeat(np.arange(20.0), 20))
    found = fit_calibration(np.ones((400, 1)), qualities)
    assert len(found.bad) / 200 == pytest.approx(0.25, abs=0.07)
    most_have_the_highest = fit_calibration(np.ones((400, 1)), np.minimum(qualities + 17, 18))
    assert most_have_the_highest.quality == 18


def test_references_are_compared_with_outputs_sources_and_outputs_of_other_lines() -> None:
    """But not those of lines without an output."""
    translations = Translator(text_model(), beam=3).translate([TEXTS[0], "", TEXTS[1]])
    found = measure_quality(translations, [translations[0].text, "", "zz"], Chrf())
    assert [one.id for one in found.translations] == [0, 2]
    assert found.qualities == pytest.approx([100, 0])
    translations = Translator(text_model(), beam=3).translate(TEXTS[:3])
    outputs, sources = [one.text for one in translations], TEXTS[:3]
    found = measure_quality(translations, outputs[1:] + outputs[:1], Chrf())
    assert found.unrelated[:, 1] == pytest.approx([100] * 3), "the references are those of the line before"
    assert measure_quality(translations, sources, Chrf()).unrelated[:, 0] == pytest.approx([100] * 3)


def test_a_fingerprint_of_weights() -> None:
    first, same, other = (text_model(seed=seed).model for seed in (0, 0, 1))
    assert weights_fingerprint([first]) == weights_fingerprint([same])
    assert len({weights_fingerprint(models) for models in ([first], [other], [first, other], [other, first])}) == 4
    with torch.no_grad():
        next(same.parameters())[0, 0] += 1e-3
    assert weights_fingerprint([first]) != weights_fingerprint([same])


def test_a_decode_has_probabilities_and_marks(calibration: Path) -> None:
    translator, made = Translator(text_model()), Calibration.load(calibration)
    keys: dict[str, Any] = {"beam": 3, "confidence": str(calibration), "review_risk": 0.005}
    whole = translator.translate([*TEXTS, ""], beam=3, nbest=3, quality_features=["mean_lprob", "nbest_entropy"])
    assert any(one.features["nbest_entropy"] > 0 for one in whole[:-1])
    wanted = [1 / (1 + math.exp(-0.3 - 1.5 * (one.features["mean_lprob"] + 0.5) / 0.2)) for one in whole[:-1]]
    found = translator.translate([*TEXTS, ""], **keys)
    assert [one.confidence for one in found] == pytest.approx([*wanted, None])
    assert [one.features for one in found] == [*(one.features for one in whole[:-1]), {}], "of all hypotheses"
    assert len(found[0].hypotheses) == 1
    assert [one.review for one in found] == [*[True] * len(TEXTS), None], "the threshold of the file is above all"
    median = sorted(one.confidence or 0 for one in found[:-1])[2]
    replace(made, good=[1.0] * 198, bad=[median]).save(calibration)
    again = translator.translate([*TEXTS, ""], **keys)
    assert [one.review for one in again] == [*((one.confidence or 0) <= median for one in found[:-1]), None]
    assert sum(bool(one.review) for one in again) == 3, "a file that has changed is read again"


def test_an_ensemble_has_a_calibration_of_its_own(calibration: Path) -> None:
    members, name = [text_model(), text_model(seed=1)], str(calibration)
    ensemble = Translator(members, beam=3)
    made = replace(Calibration.load(calibration), model=weights_fingerprint(ensemble.models))
    made.save(calibration)
    found = ensemble.translate(TEXTS, confidence=name)
    whole = ensemble.translate(TEXTS, nbest=3, quality_features=["mean_lprob", "nbest_entropy"])
    values = np.array([[*one.features.values()] for one in whole])
    assert [one.confidence for one in found] == pytest.approx(made.probabilities(values))
    with pytest.raises(ConfigError, match="made with another model"):
        Translator(members[::-1], beam=3, confidence=name).prepare()


def test_a_paragraph_is_as_certain_as_its_least_certain_sentence(calibration: Path) -> None:
    pytest.importorskip("sentencex")
    translator = Translator(text_model(), beam=3, confidence=str(calibration), review_share=0.01)
    texts = [f"{text.capitalize()}." for text in TEXTS[:3]]
    separate = [one.confidence or 0 for one in translator.translate(texts)]
    least, *others = sorted(separate)
    replace(Calibration.load(calibration), good=[1.0] * 99, bad=[least]).save(calibration)
    certain = " ".join(text for text, confidence in zip(texts, separate, strict=True) if confidence > least)
    split = {"input_split": "sentences", "input_split_lang": "en"}
    whole, rest = translator.translate([" ".join(texts), certain], **split)
    assert [one.confidence for one in whole.sentences] == separate
    assert (whole.confidence, whole.review) == (least, True), "one of the three sentences is marked"
    assert (rest.confidence, rest.review) == (others[0], False)
