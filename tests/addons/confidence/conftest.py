"""A run with a text and its calibration, made once, and a calibration of a random model."""

from dataclasses import replace
from pathlib import Path

import pytest

from seqgen.addons.confidence.calibration import Calibration, calibrated_settings, weights_fingerprint
from seqgen.text.translator import Translator
from tests.commands import SMALL_FCONV, corpus, done, sentences, training_arguments
from tests.text_models import text_model

DECODE = ("generation.beam=2", "generation.max_len_b=14", "common.threads=1")
MADE = Calibration(
    model="abc", settings={"beam": 4, "components": {"search.groups": 2}}, metric="chrf", quality=50.0,
    features=["mean_lprob", "sum_lprob"], centers=[-0.5, -7.0], scales=[0.2, 3.0], weights=[1.5, -0.25], bias=0.3,
    good=[0.5, *[0.9] * 195], bad=[0.1, 0.3, 0.6],
)  # fmt: skip


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, two texts with references, and a calibration with the first one."""
    folder = tmp_path_factory.mktemp("calibrate")
    data = corpus(folder / "data")
    further = ("optimization.lr=[2e-2]", "optimization.max_update=40", "dataset.validate_interval=0")
    done("train", *training_arguments(data, folder / "run"), *SMALL_FCONV, *further)
    for name, start in (("text", 500), ("other", 700)):
        for side, language in enumerate(("en", "de")):
            lines = "".join(pair[side] + "\n" for pair in sentences(start, 60))
            (folder / f"{name}.{language}").write_text(lines)
    files = (f"output={folder}/made.json", f"json={folder}/made.figures", f"picture={folder}/risk.svg")
    outcome = done("calibrate", *text_of(folder, "text"), *files)
    assert "30 lines, of which" in outcome.out
    return folder


def text_of(place: Path, name: str) -> list[str]:
    return [f"path={place}/run", f"input={place}/{name}.en", f"reference={place}/{name}.de", *DECODE]


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
