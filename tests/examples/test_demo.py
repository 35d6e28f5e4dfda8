"""Stopping the demo: the command that runs saves, and the demo ends with one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.demo import trained_seconds
from seqgen.checkpoints.run_checkpoints import resolve
from tests.training_runs import everything, records

ROOT = Path(__file__).parent.parent.parent
SENTENCE = "demo: stopped; run the same command again to resume"

SLOW_SAVER = """
import signal, sys, time
from pathlib import Path

def save(number, frame):
    global received
    received += 1

received = 0
signal.signal(signal.SIGINT, save)
signal.signal(signal.SIGTERM, save)
Path("ready").touch()
while not received:
    time.sleep(0.01)
time.sleep(1)
Path("saved").write_text(str(received))
sys.exit(143)
"""

DEMO = """
from examples import demo
demo.COMMANDS = {"seqgen-train": "slow_saver"}
try:
    demo.run("seqgen-train")
finally:
    print("ended")
"""


def ended(process: subprocess.Popen[str], number: int) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    assert err.splitlines()[-1] == SENTENCE
    return out


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_process_group_is_passed_on_once(number: signal.Signals, tmp_path: Path) -> None:
    """As Ctrl-C at a terminal; the demo waits until the command has saved, however long that takes."""
    (tmp_path / "slow_saver.py").write_text(SLOW_SAVER)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    program = [sys.executable, "-c", DEMO]
    process = subprocess.Popen(program, cwd=tmp_path, env=environment, stdout=-1, stderr=-1, text=True, process_group=0)
    wait_for(tmp_path / "ready", process, 20)
    os.killpg(process.pid, number)
    assert ended(process, number).endswith("ended\n")
    assert (tmp_path / "saved").read_text() == "1"


def test_a_command_that_fails_ends_the_demo_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "slow_saver.py").write_text("raise SystemExit('a sentence')")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    process = subprocess.run(
        [sys.executable, "-c", DEMO], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 1
    assert process.stderr == "a sentence\ndemo: seqgen-train ended with exit code 1\n"


def test_the_time_of_a_resumed_training_is_that_of_all_its_parts(tmp_path: Path) -> None:
    stops = ((3.5, "interrupted"), (9.0, "max_update=1 reached"), (9.1, "max_update=1 reached"))
    lines = [{"event": "train", "seconds": 99}] + [{"event": "stop", "seconds": s, "reason": r} for s, r in stops]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert trained_seconds(tmp_path) == 9.1


@pytest.mark.slow
@pytest.mark.parametrize("program", [["make", "--no-print-directory", "demo"], [sys.executable, "-m", "examples.demo"]])
def test_ctrl_c_in_the_demo_saves(program: list[str], tmp_path: Path) -> None:
    """A signal to the whole process group: make, the demo, and what belongs to it."""
    makefile = f"demo:\n\t{sys.executable} -m examples.demo {tmp_path}/runs\n"
    (tmp_path / "Makefile").write_text(makefile)
    words = [*program, "-f", str(tmp_path / "Makefile")] if program[0] == "make" else [*program, f"{tmp_path}/runs"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True, process_group=0)
    run = tmp_path / "runs" / "fconv_tiny"
    wait_for(run / "log.jsonl", process, 120)
    while not records(run):
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert "Traceback" not in err
    assert SENTENCE in err.splitlines()
    assert process.returncode in ((2, -signal.SIGINT) if program[0] == "make" else (130,))
    assert everything(run)["state"]["update"] == records(run, "stop")[-1]["update"] > 0
    assert resolve(run)
