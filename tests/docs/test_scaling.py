"""The estimate of what limits training on many GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scaling import GPUS, main, table

ROOT = Path(__file__).parent.parent.parent


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """The cells of the printed table, without its head."""
    main(["table", *arguments])
    return [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()[2:]]


def test_the_page_says_what_the_tables_show(capsys: pytest.CaptureFixture[str]) -> None:
    page = " ".join((ROOT / "docs" / "training.md").read_text(encoding="utf-8").split())
    assert "with 8,192 tokens on each GPU this is computation, with 1,024 tokens on several GPUs communication" in page
    assert len(rows(capsys)) == len(table(GPUS["h100"], 8192)) - 1 == 28
    assert {row[6] for row in rows(capsys)} == {"computation", "memory"}
    fewer = rows(capsys, "--tokens", "1024")
    assert {row[6] for row in fewer if row[1] != "1"} == {"communication", "memory"}
    assert "T5-11B needs `fsdp`" in page
    assert {(row[0], row[2]) for row in fewer if row[6] == "memory" and row[1] != "1"} == {("T5-11B", "ddp")}


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", [("train", "--updates", "2", "--examples", "300"), ("decode", "--lines", "40")])
def test_the_measurements_run(arguments: tuple[str, ...], tmp_path: Path) -> None:
    python = [sys.executable, "-m", "benchmarks.scaling", *arguments, "--rounds", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(python, check=False, capture_output=True, env=environment, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr.decode()
