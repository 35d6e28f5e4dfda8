"""Calibration: the probabilities of a known law, the promise of conformal risk control, and files that are refused."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from seqgen.config import GenerationConfig
from seqgen.errors import ConfigError, DataError
from seqgen.generation.component import Resources, build
from seqgen.registry import FEATURES
from seqgen.text.confidence.calibration import Calibration, calibrate, calibrated_settings, fitted
from seqgen.text.confidence.features import Feature
from seqgen.text.reranking import Chrf
from seqgen.text.translator import Translator
from tests.scripted_model import dictionary
from tests.text_models import TEXTS, text_model

Array = NDArray[np.float64]
MADE = Calibration(
    model="abc", settings={"beam": 4, "components": {"search.groups": 2}}, metric="chrf", quality=50.0,
    features=["mean_lprob", "sum_lprob"], centers=[-0.5, -7.0], scales=[0.2, 3.0], weights=[1.5, -0.25], bias=0.3,
    lines=199, bad=[0.1, 0.3, 0.6],
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
    found = fitted(values, good, quality=50.0)
    fresh, _, true = law(2000, 1)
    assert np.abs(found.probabilities(fresh) - true).max() < 0.06
    assert found.lines == 4000
    assert len(found.bad) == pytest.approx(4000 * (1 - good.mean()), rel=0.05)


def test_the_formula_of_a_probability() -> None:
    logit = 0.3 + 1.5 * (-0.4 + 0.5) / 0.2 - 0.25 * (-8 + 7) / 3
    assert MADE.probabilities(np.array([[-0.4, -8.0]])) == pytest.approx([1 / (1 + math.exp(-logit))])
    assert MADE.probabilities(np.array([[1e6, 0.0], [-1e6, 0.0]])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("lines", "risk"), [(50, 0.1), (200, 0.05), (39, 0.025)])
def test_the_promised_risk_is_kept_over_many_splits(lines: int, risk: float) -> None:
    """It is nearly exhausted, too: by the theorem, the risk is at least the promised one less 2 / (lines + 1)."""
    fresh, good, _ = law(4000, 2)
    first = fitted(*law(400, 3)[:2], quality=50.0)
    confidence = first.probabilities(fresh)
    draw, risks = np.random.default_rng(4), []
    for _ in range(1000):
        order = draw.permutation(len(good))
        held_out, new = order[:lines], order[lines:]
        bad = sorted(confidence[held_out[~good[held_out]]].tolist())
        threshold = replace(first, lines=lines, bad=bad).review_threshold(risk)
        risks.append(float(((confidence[new] > threshold) & ~good[new]).mean()))
    error = float(np.std(risks)) / math.sqrt(len(risks))
    assert np.mean(risks) <= risk + 3 * error
    assert np.mean(risks) >= risk - 2 / (lines + 1) - 3 * error


def test_thresholds_by_hand() -> None:
    """Of 199 lines, (k + 1) / 200 bounds the risk if k bad ones are above the threshold."""
    assert MADE.review_threshold(0.005) == 0.6
    assert MADE.review_threshold(0.0099) == 0.6
    assert MADE.review_threshold(0.01) == 0.3
    assert MADE.review_threshold(0.015) == 0.1
    assert MADE.review_threshold(0.02) == -1


def test_what_cannot_be_promised_is_refused() -> None:
    made = replace(MADE, lines=200)
    with pytest.raises(
        ConfigError, match=r"with 200 held-out lines a risk of 0.001 cannot be .*at least 999 are needed"
    ):
        made.review_threshold(0.001)
    with pytest.raises(ConfigError, match="at least 999"):
        replace(made, lines=998).review_threshold(0.001)
    assert replace(made, lines=999).review_threshold(0.001) == 0.6
    for risk in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            made.review_threshold(risk)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    MADE.save(tmp_path / "made.json")
    assert Calibration.load(tmp_path / "made.json") == MADE
    made = fitted(*law(100, 5)[:2], quality=50.0, features=["a", "b", "c"], model="abc", metric="chrf")
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
        ("scales", [0.0, 1.0]),
        ("bad", [2.0]), ("lines", 2), ("lines", 10**30), ("settings", []), ("more", 1), ("features", [1, 2]),
    ]]  # fmt: skip
    wrong += [{key: value for key, value in good.items() if key != each.name} for each in fields(Calibration)]
    for content in [*map(json.dumps, wrong), "", "[]", "7", "[" * 10**5, text[:50], "\x00"]:
        file.write_text(content)
        with pytest.raises(DataError, match=r"is no calibration or is damaged: .*; make it again") as error:
            Calibration.load(file)
        assert "\n" not in str(error.value)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="is no calibration"):
        Calibration.load(file)


def test_other_models_and_settings_are_refused() -> None:
    MADE.check("abc", dict(MADE.settings))
    with pytest.raises(ConfigError, match="made with another model"):
        MADE.check("abd", MADE.settings)
    with pytest.raises(ConfigError, match=r"other values of generation\.beam, generation\.lenpen;"):
        MADE.check("abc", {**MADE.settings, "beam": 5, "lenpen": 0.6})
    with pytest.raises(ConfigError, match=r"other values of generation\.components;"):
        MADE.check("abc", {"beam": 4})
    cfg = GenerationConfig(beam=4, batch_size=3, components={"search.groups": 2})
    MADE.check("abc", calibrated_settings(cfg))


def test_a_decode_is_calibrated() -> None:
    texts = [*TEXTS, *(" ".join(reversed(text.split())) for text in TEXTS), ""] * 2
    translations = Translator(text_model(), beam=3, nbest=3).translate(texts)
    # every second reference is the output
    references = [line.text if number % 2 else "zz" for number, line in enumerate(translations)]
    resources = Resources(dictionary(19))
    names = ["mean_lprob", "length_ratio", "unknown_tokens"]
    features = {name: build(FEATURES, name, Feature, GenerationConfig(), resources) for name in names}
    found = calibrate(translations, references, features, Chrf(), metric="chrf", quality=60.0, model="m", settings={})
    assert found.features == names
    assert found.lines == 10, "half of the lines that have an output"
    assert 1 <= len(found.bad) < 10
    with pytest.raises(DataError, match=r"0 of 10 outputs reach the quality 101, and both good and bad ones"):
        calibrate(translations, references, features, Chrf(), metric="chrf", quality=101.0, model="m", settings={})
