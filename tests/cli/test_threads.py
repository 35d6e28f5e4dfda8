"""How threads wait on a machine that others use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from seqgen.cli import wait_passively_if_busy
from seqgen.cli.command import set_up_device
from seqgen.config import CommonConfig


@pytest.mark.parametrize(
    ("load", "before", "after"),
    [
        (0.0, {}, {}),
        (3.9, {}, {}),
        (4.1, {}, {"OMP_WAIT_POLICY": "PASSIVE"}),
        (99.0, {"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        (99.0, {"GOMP_SPINCOUNT": "5"}, {"GOMP_SPINCOUNT": "5"}),
    ],
)
def test_the_load_decides_unless_the_user_has(
    load: float, before: dict[str, str], after: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    wait_passively_if_busy(before)
    assert before == after


@pytest.mark.parametrize(("threads", "noted"), [(0, False), (2, False), (3, True)])
def test_more_threads_than_cores_are_noted(
    threads: int, noted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("seqgen.cli.command.available_cores", lambda: 2)
    monkeypatch.setattr("seqgen.cli.command.set_threads", lambda threads: None)
    set_up_device(CommonConfig(device="cpu", threads=threads, keep_freed_memory=False))
    assert ("common.threads=3 is slower" in capsys.readouterr().err) == noted


def test_it_is_decided_before_torch_is_imported() -> None:
    code = (
        "import os, sys, builtins; os.environ.pop('OMP_WAIT_POLICY', None); os.getloadavg = lambda: (1e3, 0, 0)\n"
        "class Watch:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch': print(os.environ.get('OMP_WAIT_POLICY')); sys.exit()\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import seqgen.cli.command\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "PASSIVE\n"
