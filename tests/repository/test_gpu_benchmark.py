"""The benchmark of GPUs runs on the simulated GPU, and goes on after errors and without time."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import gpu
from seqgen.addons.cuda_graphs.captured import NotCapturable


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a small benchmark; returns the exit code and the cells of the table."""

    def run(model: str, seconds: float = 1e9) -> tuple[int, list[list[str]]]:
        sizes: dict[str, Any] = {"cases": [("fconv_uneven", "beam")], "sizes": ((1, 2),), "length": 3}
        plan = replace(gpu.plan_of("simulated"), models=(model,), **sizes)
        monkeypatch.setattr(gpu, "plan_of", lambda device: plan)
        monkeypatch.setattr(gpu, "DTYPES", ("float32",))
        code = gpu.main(["--device", "simulated", "--seconds", str(seconds)])
        lines = capsys.readouterr().out.splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
        return code, [[lines[2]], *cells[2:], [lines[-1]]]

    return run


@pytest.mark.slow
def test_a_table(run: Any) -> None:
    code, ((outputs,), *rows, (last,)) = run("t5_tiny")
    assert outputs == "Outputs of the CPU: 1 cases, 1 of them also with captured steps, 0 failed"
    assert [row[4].split()[0] for row in rows] == ["seqgen", "seqgen,", "transformers"]
    assert all(float(cell) >= 0 for row in rows for cell in row[5:])
    eager, captured, _ = (float(row[7]) for row in rows)
    assert captured < eager  # launches
    assert (code, last) == (0, "0 rows failed; 0 rows are left out, as there was no time for them")


@pytest.mark.slow
def test_an_error_is_a_row(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise NotCapturable("no | today")

    monkeypatch.setattr(gpu.captured, "CapturedStep", refuse)
    code, (_, *rows, _) = run("fconv_tiny")
    said = "failed: RuntimeError: no step was replayed: some steps were not captured: no / today"
    assert [row[4:] for row in rows if row[5].startswith("failed")] == [["seqgen, captured", said]]
    assert code == 1


def test_without_time_all_is_left_out(run: Any) -> None:
    code, ((outputs,), (last,)) = run("fconv_tiny", 0.0)
    assert outputs.endswith("0 failed, 1 cases are left out for lack of time")
    assert (code, last) == (0, "0 rows failed; 2 rows are left out, as there was no time for them")


def test_waits_are_the_warnings_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def call() -> None:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("another warning", stacklevel=1)

    assert gpu.waits_of(call, None) == 3
    assert modes == ["warn", "default"]


def test_another_device_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "cpu"]) == 2
    assert capsys.readouterr().err == "--device=cpu is no GPU; choose cuda or simulated\n"


@pytest.mark.slow
def test_the_whole_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "simulated", "--seconds", "1000000"]) == 0
    assert "0 rows failed; 0 rows are left out" in capsys.readouterr().out
