"""Calibration: the probabilities of a known law, the promise of conformal risk control, and files that are refused."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from seqgen.addons.confidence.calibration import (
    SMALLEST,
    Calibration,
    calibrated_settings,
    fit_calibration,
    measure_quality,
    weights_fingerprint,
)
from seqgen.config import GenerationConfig
from seqgen.config.values import LARGEST_FLOAT
from seqgen.core.errors import ConfigError, DataError
from seqgen.text.input_line import InputLine
from seqgen.text.reranking import Chrf
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model

Array = NDArray[np.float64]
MADE = Calibration(
    model="abc", settings={"beam": 4, "components": {"search.groups": 2}}, metric="chrf", quality=50.0,
    features=["mean_lprob", "sum_lprob"], centers=[-0.5, -7.0], scales=[0.2, 3.0], weights=[1.5, -0.25], bias=0.3,
    good=[0.5, *[0.9] * 195], bad=[0.1, 0.3, 0.6],
)  # fmt: skip


def law(count: int, seed: int) -> tuple[Array, NDArray[np.bool_], Array]:
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


def test_probabilities_are_numbers_whatever_the_file_says() -> None:
    made = replace(MADE, scales=[SMALLEST] * 2, weights=[LARGEST_FLOAT, -LARGEST_FLOAT], centers=[LARGEST_FLOAT] * 2)
    assert np.isfinite(made.probabilities(np.array([[-LARGEST_FLOAT, -LARGEST_FLOAT]]))).all()


def test_the_formula_of_a_probability() -> None:
    logit = 0.3 + 1.5 * (-0.4 + 0.5) / 0.2 - 0.25 * (-8 + 7) / 3
    assert MADE.probabilities(np.array([[-0.4, -8.0]])) == pytest.approx([1 / (1 + math.exp(-logit))])
    assert MADE.probabilities(np.array([[1e6, 0.0], [-1e6, 0.0]])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("lines", "risk"), [(50, 0.1), (200, 0.05), (39, 0.025)])
def test_the_promised_risk_is_kept_over_many_splits(lines: int, risk: float) -> None:
    """It is nearly exhausted, too: by the theorem, the risk is at least the promised one less 2 / (lines + 1)."""
    fresh, good, _ = law(4000, 2)
    values, reached, _ = law(400, 3)
    first = fit_calibration(values, reached.astype(float), 1.0)
    confidence = first.probabilities(fresh)
    draw, risks = np.random.default_rng(4), []
    for _ in range(1000):
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
    assert MADE.risk_threshold(0.005) == 0.6
    assert MADE.risk_threshold(0.0099) == 0.6
    assert MADE.risk_threshold(0.01) == 0.3
    assert MADE.risk_threshold(0.015) == 0.1
    assert MADE.risk_threshold(0.02) == -1


def test_what_cannot_be_promised_is_refused() -> None:
    def made(lines: int) -> Calibration:
        return replace(MADE, good=[0.9] * (lines - 3))

    with pytest.raises(
        ConfigError, match=r"with 200 held-out lines a risk of 0.001 cannot be .*at least 999 are needed"
    ):
        made(200).risk_threshold(0.001)
    with pytest.raises(ConfigError, match="at least 999"):
        made(998).risk_threshold(0.001)
    assert made(999).risk_threshold(0.001) == 0.6


@pytest.mark.parametrize(
    ("share", "wanted"), [(1 / 199, 0.1), (0.01, 0.1), (2 / 199, 0.3), (4 / 199, 0.6), (0.999, 0.9), (1, 1.0)]
)
def test_a_share_of_the_held_out_lines(share: float, wanted: float) -> None:
    assert MADE.share_threshold(share) == wanted


def test_less_than_one_held_out_line_cannot_be_marked() -> None:
    with pytest.raises(ConfigError, match=r"a share of 0\.005 is less than one of 199 held-out lines"):
        MADE.share_threshold(0.005)


def test_a_line_without_an_output_is_marked(calibration: Path) -> None:
    translator = Translator(text_model(), beam=3, confidence=str(calibration), review_risk=0.02)
    stages, line = translator.prepare().stages, InputLine(0, "w1", [torch.tensor([4, 2])])
    found = stages.write(line, line.translation(), of_search=True)
    assert (found.confidence, found.review) == (0.0, True)


def test_a_file_that_a_key_names_is_known_by_its_content(tmp_path: Path) -> None:
    for name in ("one", "two", "other"):
        (tmp_path / name).write_text("w1\tw2\n" if name != "other" else "w1\tw3\n")
    one, two, other = (
        calibrated_settings(GenerationConfig(replace_unknown=str(tmp_path / name))) for name in ("one", "two", "other")
    )
    assert one == two != other


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    MADE.save(tmp_path / "made.json")
    assert Calibration.load(tmp_path / "made.json") == MADE
    values, good, _ = law(100, 5)
    made = fit_calibration(values, good.astype(float), 1.0, features=["a", "b", "c"], model="abc", metric="chrf")
    made.save(tmp_path / "fitted.json")
    assert Calibration.load(tmp_path / "fitted.json") == made


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "made.json"
    with pytest.raises(DataError, match="there is no file"):
        Calibration.load(file)
    MADE.save(file)
    good, text = json.loads(file.read_text()), file.read_text()
    wrong = [{**good, name: value} for name, value in [
        ("format", "seqgen calibration 2"), ("bias", "x"), ("bias", math.nan), ("weights", [1.0]),
        ("scales", [0.0, 1.0]), ("scales", [1e-300, 1e-300]),
        ("bad", [2.0]), ("good", 2), ("good", [-1e-9]), ("weights", []),
("settings", []), ("more", 1), ("features", [1, 2]),
    ]]  # fmt: skip
    wrong += [
        {**good, "good": [], "bad": []},
        {**good, **{key: [] for key in ("features", "centers", "scales", "weights")}},
    ]
    wrong += [{key: value for key, value in good.items() if key != each.name} for each in fields(Calibration)]
    twice = text.replace('"bias": 0.3', '"bias": 0.3, "bias": 5')
    for content in [*map(json.dumps, wrong), twice, "", "[]", "7", "[" * 10**5, text[:50], "\x00"]:
        file.write_text(content)
        with pytest.raises(DataError, match=r"is not a calibration, or is damaged: .*; make it again") as error:
            Calibration.load(file)
        assert "\n" not in str(error.value)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="is not a calibration"):
        Calibration.load(file)


def test_other_models_and_settings_are_refused() -> None:
    MADE.check("abc", dict(MADE.settings))
    with pytest.raises(ConfigError, match="made with another model"):
        MADE.check("abd", MADE.settings)
    with pytest.raises(ConfigError, match=r"other values of generation\.beam, generation\.length_penalty;"):
        MADE.check("abc", {**MADE.settings, "beam": 5, "length_penalty": 0.6})
    with pytest.raises(ConfigError, match=r"other values of generation\.components;"):
        MADE.check("abc", {"beam": 4})
    of_the_call: dict[str, Any] = {"nbest": 2, "observers": ["x"], "batch_size": 3}
    cfg = GenerationConfig(beam=4, components={"search.groups": 2}, **of_the_call)
    MADE.check("abc", calibrated_settings(cfg))


def test_by_default_all_but_the_worst_quarter_is_good_enough() -> None:
    qualities = np.random.default_rng(0).permutation(np.repeat(np.arange(20.0), 20))
    found = fit_calibration(np.ones((400, 1)), qualities)
    assert len(found.bad) / 200 == pytest.approx(0.25, abs=0.07)
    assert fit_calibration(np.ones((400, 1)), np.minimum(qualities + 17, 18)).quality == 18, (
        "most lines have the highest quality"
    )
    with pytest.raises(DataError, match=r"0 of 200 outputs reach the quality 21, but both good and bad ones"):
        fit_calibration(np.ones((400, 1)), qualities, 21)
    with pytest.raises(DataError, match="needs 20 lines with an output, but there are 19"):
        fit_calibration(np.ones((19, 1)), qualities[:19])


def test_lines_without_an_output_are_not_measured() -> None:
    translations = Translator(text_model(), beam=3).translate([TEXTS[0], "", TEXTS[1]])
    found = measure_quality(translations, [translations[0].text, "", "zz"], Chrf())
    assert [one.id for one in found.translations] == [0, 2]
    assert found.qualities == pytest.approx([100, 0])


def test_references_are_compared_with_texts_that_do_not_belong_to_them() -> None:
    """With the sources, and with outputs of other lines."""
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


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    """A calibration of ``text_model()`` with a beam of 3, in which the mean log-probability is all that counts."""
    model, cfg = text_model(), Translator(text_model()).settings(beam=3)
    made = replace(
        MADE, model=weights_fingerprint([model.model]), settings=calibrated_settings(cfg), weights=[1.5, 0.0],
        features=["mean_lprob", "nbest_entropy"],
    )  # fmt: skip
    made.save(tmp_path / "made.json")
    return tmp_path / "made.json"


def test_a_decode_has_probabilities_and_marks(calibration: Path) -> None:
    translator, made = Translator(text_model()), Calibration.load(calibration)
    whole = translator.translate([*TEXTS, ""], beam=3, nbest=3, quality_features=["mean_lprob", "nbest_entropy"])
    assert whole[-1].features == {}
    wanted = [1 / (1 + math.exp(-0.3 - 1.5 * (one.features["mean_lprob"] + 0.5) / 0.2)) for one in whole[:-1]]
    median = sorted(wanted)[2]
    replace(made, bad=[median, *made.bad]).save(calibration)  # a file that has changed is read again
    found = translator.translate([*TEXTS, ""], beam=3, confidence=str(calibration), review_risk=0.005)
    assert [one.confidence for one in found] == pytest.approx([*wanted, None])
    assert [one.features for one in found] == [one.features for one in whole], "of all hypotheses, not of the best"
    assert len(found[0].hypotheses) == 1
    level = made.risk_threshold(0.005)
    assert [one.review for one in found] == [*(value <= max(level, median) for value in wanted), None]


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
        Translator(members[::-1], beam=3, confidence=name).translate(TEXTS)


def test_a_paragraph_is_as_certain_as_its_least_certain_sentence(calibration: Path) -> None:
    pytest.importorskip("sentencex")
    translator = Translator(text_model(), beam=3, confidence=str(calibration), review_share=0.01)
    texts = [f"{text.capitalize()}." for text in TEXTS[:3]]
    separate = translator.translate(texts)
    (whole,) = translator.translate([" ".join(texts)], input_split="sentences", input_split_lang="en")
    assert [one.confidence for one in whole.sentences] == [one.confidence for one in separate]
    assert whole.confidence == min(one.confidence or 0 for one in separate)
    assert whole.review == any(one.review for one in separate)


def test_other_uses_of_a_calibration_are_refused(calibration: Path) -> None:
    name = str(calibration)
    with pytest.raises(ConfigError, match=r"generation.confidence=.*made.json: .*other values of generation.beam"):
        Translator(text_model(), beam=4, confidence=name).translate(TEXTS)
    with pytest.raises(ConfigError, match="made with another model"):
        Translator(text_model(seed=1), beam=3, confidence=name).translate(TEXTS)
    with pytest.raises(ConfigError, match="made with another model"):
        Translator([text_model(), text_model(seed=1)], beam=3, confidence=name).translate(TEXTS)
    with pytest.raises(ConfigError, match=r"a risk of 0\.001 cannot be guaranteed; at least 999 are needed"):
        Translator(text_model(), beam=3, confidence=name, review_risk=0.001).translate(TEXTS)
    with pytest.raises(ConfigError, match=r"review_risk=0\.0 is below its minimum"):
        Translator(text_model(), beam=3, confidence=name, review_risk=0.0)
    with pytest.raises(ConfigError, match=r"review_share=0\.1 has no effect without generation.confidence=FILE"):
        Translator(text_model(), review_share=0.1)
    with pytest.raises(ConfigError, match="both mark lines; remove one of them"):
        Translator(text_model(), confidence=name, review_share=0.1, review_risk=0.1)
