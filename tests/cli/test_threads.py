"""How threads wait on a machine that others use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqgen.cli import wait_passively_if_busy
from seqgen.extend import CommonConfig, set_up_device


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


SITE = """
import os, sys
os.environ.pop("OMP_WAIT_POLICY", None)
os.getloadavg = lambda: (1e3, 0, 0)
class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"))
            os._exit(sys.stdout.flush() or 0)
sys.meta_path.insert(0, Watch())
"""


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["-m", "seqgen.cli.generate"], "PASSIVE"),
        (["-c", "import sys; sys.argv = ['bin/seqgen-train']; import seqgen.cli.start as s; s.main()"], "PASSIVE"),
        (["-c", "import seqgen.extend; seqgen.extend.run"], "None"),
        (["-m", "users.tool"], "None"),
    ],
)
@pytest.mark.slow
def test_it_is_decided_before_torch_is_imported_by_commands_alone(
    arguments: list[str], found: str, tmp_path: Path
) -> None:
    """A process of a user, which imports seqgen, keeps its environment."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "__init__.py").write_text("import seqgen.extend\nseqgen.extend.run\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == found, done.stderr
