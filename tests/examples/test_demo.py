"""Stopping the demo: the command that runs saves, and the demo ends with one sentence."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
try:
    demo.run("python", "slow_saver.py")
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
