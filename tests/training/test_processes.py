"""Runs of several processes: who holds the lock, and what is said when one of them dies, hangs or is stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.config import DistributedConfig
from seqgen.training.distributed import LostRanksError, ProcessGroup, join
from seqgen.training.train import StopSignals
from tests.commands import SMALL_FCONV, done, training_arguments
from tests.training_runs import everything, free_port, records

ROOT = Path(__file__).parent.parent.parent


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_processes_that_do_not_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with pytest.raises(LostRanksError, match=r"process 0 of 2 cannot continue .* distributed_training\.timeout"):
        join(ProcessGroup(0, 2), DistributedConfig(timeout=1), torch.device("cpu"))


# the last one is of operations that wait while another one times out
GLOO = ("[gloo/transport/tcp] Timed out", "Connection closed by peer", "Application timeout caused pair closure")


@pytest.mark.parametrize("said", GLOO)
def test_what_gloo_says_of_a_lost_rank_is_told_from_other_errors(said: str) -> None:
    lost = pytest.raises(LostRanksError, match="process 1 of 2 cannot continue without the others")
    with lost, ProcessGroup(1, 2).collective():
        raise RuntimeError(said)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), ProcessGroup(1, 2).collective():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


class TestStopSignals:
    def test_hangup_stays_ignored_under_nohup(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with StopSignals() as signals:
                os.kill(os.getpid(), signal.SIGHUP)
                assert not signals.received
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_a_request_that_arrives_twice_is_one(self) -> None:
        with StopSignals(second_ends=False) as signals:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.received == signal.SIGINT

    @pytest.mark.slow
    def test_training_survives_the_terminal(self) -> None:
        """Whoever writes to a terminal that was closed gets an error; after SIGHUP nothing is written there."""
        program = (
            "import sys, time\nfrom seqgen.training.train import StopSignals\n"
            "with StopSignals() as signals:\n"
            "    print('ready', flush=True)\n    while not signals.received:\n        time.sleep(0.05)\n"
            "    print('more', flush=True)\n"
            "    print('more', file=sys.stderr, flush=True)\n    sys.exit(signals.exit_code)\n"
        )
        ours, theirs = os.openpty()
        # A session of its own: a closed terminal that controls the session of the tests would send SIGHUP once more.
        command = [sys.executable, "-c", program]
        process = subprocess.Popen(command, stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)
        assert os.read(ours, 100).startswith(b"ready")
        os.close(ours)  # the terminal is gone
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 129


# -- whole runs ---------------------------------------------------------------------------------------------------


class Run:
    """``seqgen-train`` in two processes that ``torchrun`` has started, in a process group of its own."""

    def __init__(self, data: Path, folder: Path, *overrides: str, restarts: int = 0):
        self.folder = folder
        self.arguments = [*training_arguments(data, folder), *SMALL_FCONV, "common.tensorboard=false"]
        self.arguments += ["common.log_interval=1", *overrides]
        program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        program += ["--max-restarts", str(restarts), "-m", "seqgen.cli.train", *self.arguments]
        program += ["optimization.max_update=100000"]
        options: Any = {"cwd": ROOT, "env": {**os.environ, "OMP_NUM_THREADS": "1"}, "text": True, "process_group": 0}
        self.launcher = subprocess.Popen(program, stderr=subprocess.PIPE, **options)

    def workers(self) -> list[int]:
        """The started processes, in the order of their ranks."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                if parent == self.launcher.pid and b"seqgen.cli.train" in (stat.parent / "cmdline").read_bytes():
                    found.append(int(stat.parent.name))
            except OSError:
                continue
        return sorted(found)

    def wait_for_updates(self) -> list[int]:
        log = self.folder / "log.jsonl"
        wait_until(lambda: log.exists() and len(records(self.folder)) > 3)
        return self.workers()


@pytest.fixture
def start(data: Path, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(*overrides: str, **how: Any) -> Run:
        runs.append(Run(data, tmp_path / "run", *overrides, **how))
        return runs[-1]

    yield begin
    for run in runs:
        if run.launcher.poll() is None:
            os.killpg(run.launcher.pid, signal.SIGKILL)


FAILING = """
from pathlib import Path
import torch
from seqgen.core.errors import UserError
from seqgen.training.criteria import LabelSmoothedCrossEntropyCriterion as Criterion
calls, compute = [], Criterion.__call__
def fail(self, model, batch):
    calls.append(batch)
    if len(calls) == 6 and torch.distributed.get_rank() == 1:
        Path(__file__).with_name("failed").touch()
        raise UserError("the sixth batch is bad")
    return compute(self, model, batch)
Criterion.__call__ = fail
"""


@pytest.mark.slow
def test_an_error_of_one_rank_is_shown_once_and_ends_all(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    run = start(f"common.user_dir={tmp_path / 'failing.py'}")
    wait_until((tmp_path / "failed").exists)
    _, said = run.launcher.communicate(timeout=120)
    assert not run.workers()
    assert run.launcher.returncode != 0
    assert said.count("seqgen-train: ") == said.count("seqgen-train: the sixth batch is bad") == 1, said


@pytest.mark.slow
def test_a_killed_rank_ends_all(start: Callable[..., Run]) -> None:
    run = start()
    workers = run.wait_for_updates()
    os.kill(workers[1], signal.SIGKILL)
    _, said = run.launcher.communicate(timeout=60)
    assert not any(map(alive, workers))
    assert "SIGKILL" in said
    assert "cannot continue without the others" not in said


@pytest.mark.nightly
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_torchrun_restarts_from_the_newest_checkpoint(start: Callable[..., Run], sharding: str) -> None:
    """Each rank is killed once; the run continues by itself."""
    saving = "checkpoint.save_interval_updates=2"
    run = start(saving, f"distributed_training.sharding={sharding}", restarts=2)
    last = run.folder / "checkpoints" / "last"
    for kills in (1, 2):
        wait_until(last.exists)
        workers = run.workers()
        os.kill(workers[kills - 1], signal.SIGKILL)
        wait_until(lambda number=kills: len(records(run.folder, "resume")) == number)
        resumed = records(run.folder, "resume")[-1]["update"]
        assert resumed > 0
        wait_until(lambda update=resumed: records(run.folder) and records(run.folder)[-1]["update"] > update + 3)
        assert not any(map(alive, workers))
    os.killpg(run.launcher.pid, signal.SIGTERM)
    run.launcher.communicate(timeout=60)
    assert records(run.folder, "stop")[-1]["reason"] == "interrupted"
    assert everything(run.folder)["state"]["update"] == records(run.folder, "stop")[-1]["update"]


@pytest.mark.slow
def test_processes_of_a_killed_torchrun_end(start: Callable[..., Run]) -> None:
    run = start("checkpoint.save_interval_updates=2")
    workers = run.wait_for_updates()
    assert len(workers) == 2
    run.launcher.kill()
    run.launcher.wait()
    wait_until(lambda: not any(map(alive, workers)), 10)
    update = everything(run.folder)["state"]["update"]
    more = [f"optimization.max_update={update + 2}", "checkpoint.save_interval_updates=2"]
    done("train", *run.arguments, *more, "optimization.update_freq=[2]")
    assert everything(run.folder)["state"]["update"] == update + 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_a_signal_to_torchrun_and_its_processes_saves(start: Callable[..., Run], number: signal.Signals) -> None:
    """torchrun sends its processes once more what the terminal has sent them."""
    run = start()
    workers = run.wait_for_updates()
    os.killpg(run.launcher.pid, number)
    run.launcher.communicate(timeout=60)
    assert not any(map(alive, workers))
    assert records(run.folder, "stop")[-1]["reason"] == "interrupted"
    assert everything(run.folder)["state"]["update"] == records(run.folder, "stop")[-1]["update"]
