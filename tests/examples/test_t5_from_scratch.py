"""examples/t5_from_scratch.py runs, at the smallest size, on parallel text and on names of numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples import t5_from_scratch
from tests.commands import command, corpus

SMALL = [
    "--vocab-size=60",
    "--input-length=32",
    "--max-tokens=300",
    "--pretrain-updates=3",
    "--finetune-updates=3",
    "--pairs=40",
    "--sentences=4",
    "--beam=2",
    "--model",
    "model=t5_tiny",
    "model.d_model=16",
    "model.d_kv=8",
    "model.d_ff=16",
    "model.num_heads=2",
    "model.num_layers=1",
    "common.threads=1",
]


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_process(name: str, *arguments: str) -> str:
        outcome = command(name, *arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out

    monkeypatch.setattr(t5_from_scratch, "command", in_process)


@pytest.mark.slow
def test_it_runs_on_parallel_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = corpus(tmp_path / "data")
    t5_from_scratch.main([str(tmp_path / "runs"), f"--data={data}", "--test=test", *SMALL])
    out = capsys.readouterr().out
    rows = re.findall(r"from (pretrained|scratch)\s+│\s+\d+ s │ to (German|English)\s+│\s+[\d.?]+ │", out)
    assert rows == [("pretrained", "German"), ("pretrained", "English"), ("scratch", "German"), ("scratch", "English")]
    for name in ("from_pretrained.de", "from_pretrained.en", "from_scratch.de", "from_scratch.en"):
        assert len((tmp_path / "runs" / name).read_text().splitlines()) == 4
    raw = (tmp_path / "runs" / "text" / "raw.train.txt").read_text().splitlines()
    assert len(raw) == 600
    assert len((tmp_path / "runs" / "text" / "pairs.train.de").read_text().splitlines()) == 40


@pytest.mark.slow
def test_it_runs_on_names_of_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    t5_from_scratch.main([str(tmp_path / "runs"), *SMALL])
    assert "from scratch" in capsys.readouterr().out
