"""``examples/comet_elsewhere.py``, with a stand-in of the package in another process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqgen.core.errors import ConfigError
from seqgen.metrics import CORPUS_METRICS, Texts

FAKE = """
import types
print("loading")  # as the package does
download_model = lambda name: name + ".ckpt"
class Model:
    def predict(self, rows, **keys):
        return types.SimpleNamespace(scores=[len(row["mt"]) / len(row["src"] + row["ref"]) for row in rows])
def load_from_checkpoint(path):
    assert path == "Unbabel/wmt22-comet-da.ckpt"
    return Model()
"""
TEXTS = Texts(["ab", "ö"], ["a", "bcd"], ["xyz", "x"], more_references=[["abcde", "b"]])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "comet.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("COMET_PYTHON", sys.executable)
    yield
    CORPUS_METRICS.pop("comet_elsewhere", None)


def test_scores_come_from_the_other_process() -> None:
    from examples.comet_elsewhere import comet_elsewhere

    wanted = [100 * (2 / 4 + 2 / 8) / 2, 100 * (1 / 4 + 1 / 2) / 2]
    found = comet_elsewhere(TEXTS)
    assert found.value == pytest.approx(sum(wanted) / 2)
    assert "comet" not in sys.modules


def test_failures_end_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.comet_elsewhere import comet_elsewhere

    (tmp_path / "comet.py").write_text("raise ImportError('no such package')")
    with pytest.raises(ConfigError, match=r"failed: ImportError: no such package"):
        comet_elsewhere(TEXTS)
    for python, said in (("", "set COMET_PYTHON"), (f"{tmp_path}/nothing", "cannot be started: No such file")):
        monkeypatch.setenv("COMET_PYTHON", python)
        with pytest.raises(ConfigError, match=said):
            comet_elsewhere(TEXTS)
