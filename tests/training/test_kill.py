"""A process that is killed at random moments, again and again, ends with the same weights as one that never was."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seqgen.checkpoints.run_checkpoints import read_weights, resolve
from tests.training_runs import assert_identical, everything, records

OVERRIDES = [
    "optimization.max_update=60",
    "optimization.ema_decay=0.9",
    "optimization.lr=[1e-2]",
    "dataset.num_workers=1",
    "dataset.validate_interval_updates=7",
    "checkpoint.save_interval_updates=2",
    "checkpoint.keep_interval_updates=2",
]


def start(root: Path, name: str) -> subprocess.Popen[bytes]:
    repository = Path(__file__).parent.parent.parent
    command = [sys.executable, "-m", "tests.training_runs", str(root), name, *OVERRIDES]
    return subprocess.Popen(command, cwd=repository)


def checkpoint_exists(run: Path) -> bool:
    return (run / "checkpoints" / "last").exists()


@pytest.mark.nightly
def test_sigkill_at_random_moments(tmp_path: Path) -> None:
    assert start(tmp_path, "once").wait() == 0
    once, often = tmp_path / "once", tmp_path / "often"
    rng, kills, code = random.Random(0), 0, None
    while code != 0:
        process = start(tmp_path, "often")
        before = (often / "log.jsonl").stat().st_mtime_ns if (often / "log.jsonl").exists() else 0
        while process.poll() is None and not _trains(often, before):
            time.sleep(0.01)
        try:
            code = process.wait(rng.uniform(0.0, 0.5) if kills < 10 else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            if checkpoint_exists(often):
                read_weights(resolve(often))
                everything(often)
        else:
            assert code == 0
    assert kills >= 3, "the runs were too fast to be killed"
    for name in ("last", "best"):
        assert_identical(everything(often, name), everything(once, name))
    for event in ("train", "valid"):
        assert records(often, event) == records(once, event)
    assert {p.name for p in (often / "checkpoints").iterdir()} == {p.name for p in (once / "checkpoints").iterdir()}


def _trains(run: Path, before: int) -> bool:
    """Whether a process has begun to train: it has written to the log."""
    log = run / "log.jsonl"
    return log.exists() and log.stat().st_mtime_ns != before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals(number: signal.Signals, tmp_path: Path) -> None:
    """The first signal ends the update, saves and gives 128 + signal; the run can be continued."""
    process = start(tmp_path, "run")
    while not _trains(tmp_path / "run", 0):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait() == 128 + number
    assert everything(tmp_path / "run")["state"]["update"] < 60
    assert records(tmp_path / "run", "stop")[-1]["reason"] == "interrupted"
