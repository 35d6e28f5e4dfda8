"""What a user is told of features and calibrations that cannot be used."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgen.addons.confidence.calibration import Calibration, fit_calibration
from seqgen.text.translator import Translator
from tests.addons.confidence.conftest import MADE, text_of
from tests.refusals import Row, refusals
from tests.text_models import TEXTS, text_model

GOOD = asdict(MADE)
TEXT = json.dumps(GOOD)


@pytest.fixture
def text(place: Path) -> str:
    """The arguments of a text with references."""
    return " ".join(text_of(place, "text"))


@pytest.fixture
def made(place: Path) -> str:
    return f"generation.confidence={place}/made.json"


test_commands = refusals(
    # seqgen-calibrate
    ("calibrate {text}", "set either output=FILE.json"),
    ("calibrate {text} {made} quality=3", "quality has no effect with generation.confidence"),
    ("calibrate {text} {made} generation.quality_features=[mean_lprob]", "quality_features has no effect"),
    ("calibrate {text} {made} metric=bleu", "made with metric=chrf, not bleu"),
    ("calibrate {text} output=x.json metric=chfr", "chfr", "chrf"),
    ("calibrate {text} output=x.json quality=1000", "outputs reach the quality 1000"),
    ("calibrate {text} output=x.json generation.input_split=sentences", "without generation.input_split"),
    ("calibrate {text} output=x.json generation.quality_features=[mean_lprop]", "mean_lprop", "mean_lprob"),
    ("calibrate {text} output=x.json picture=risk.xyz", "must end in .svg, .png, .pdf"),
    ("calibrate path={place}/run input={place}/text.en output=x.json", "set both input=FILE and reference=FILE"),
    ("calibrate {text} output={place}/x.json json={place}/text.en", "would overwrite the input"),
    # decoding with a calibration
    ("generate path={place}/run input=- {made} stream=true", "stream=true writes no probabilities"),
    ("generate {text} {made} generation.length_penalty=2", "other values of generation.length_penalty"),
)


def translate(calibration: Path, **keys: Any) -> None:
    Translator(text_model(), **{"beam": 3, "confidence": str(calibration), **keys}).translate(TEXTS)


def fit(count: int, quality: float | None) -> None:
    fit_calibration(np.ones((count, 1)), np.random.default_rng(0).permutation(np.arange(count) % 20.0), quality)


check = partial(MADE.check, "abc")
test_calibrations = refusals(
    # other models and settings
    (lambda: MADE.check("abd", MADE.settings), "made with another model"),
    (lambda: check({**MADE.settings, "beam": 5, "unkpen": 1.0}), "other values of generation.beam, generation.unkpen;"),
    (lambda: check({"beam": 4}), "other values of generation.components;"),
    (lambda calibration: translate(calibration, beam=4), "made.json: ", "other values of generation.beam"),
    # marks
    (lambda calibration: translate(calibration, review_risk=0.0), "review_risk=0.0 is below its minimum"),
    (lambda: Translator(text_model(), review_share=0.1), "review_share=0.1 has no effect without generation.confid"),
    (lambda calibration: translate(calibration, review_share=0.1, review_risk=0.1), "both mark lines; remove one"),
    (lambda: replace(MADE, good=[0.9] * 197).risk_threshold(0.001), "with 200 held-out", "at least 999 are needed"),
    (lambda: MADE.share_threshold(0.005), "a share of 0.005 is less than one of 199 held-out lines"),
    # too little data
    (lambda: fit(400, 21), "0 of 200 outputs reach the quality 21, but both good and bad ones"),
    (lambda: fit(19, None), "needs 20 lines with an output, but there are 19"),
    # features
    (lambda: Translator(text_model(), quality_features=["boosted_lprob"]).translate(TEXTS), "top_tokens=2 or more"),
)


def load(content: str, tmp_path: Path) -> None:
    (tmp_path / "made.json").write_bytes(content.encode("latin-1"))
    Calibration.load(tmp_path / "made.json")


def damaged() -> Iterator[str]:
    """Contents of files that are not calibrations."""
    for name, value in [
        ("format", "seqgen calibration 2"), ("bias", "x"), ("bias", math.nan), ("weights", [1.0]), ("weights", []),
        ("scales", [0.0, 1.0]), ("scales", [1e-300, 1e-300]), ("bad", [2.0]), ("good", 2), ("good", [-1e-9]),
        ("settings", []), ("more", 1), ("features", [1, 2]),
    ]:  # fmt: skip
        yield json.dumps({**GOOD, name: value})
    yield json.dumps({**GOOD, "good": [], "bad": []})
    yield json.dumps({**GOOD, **{key: [] for key in ("features", "centers", "scales", "weights")}})
    for each in fields(Calibration):
        yield json.dumps({key: value for key, value in GOOD.items() if key != each.name})
    yield TEXT.replace('"bias": 0.3', '"bias": 0.3, "bias": 5')
    yield from ("", "[]", "7", "[" * 10**5, TEXT[:50], "\x00", "\xff\xfe")


def is_damaged(content: str) -> Row:
    return partial(load, content), "made.json is not a calibration, or is damaged: ", "; make it again"


test_files = refusals(
    (lambda tmp_path: Calibration.load(tmp_path / "made.json"), "there is no file"), *map(is_damaged, damaged())
)
