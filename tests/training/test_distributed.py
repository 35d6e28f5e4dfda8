"""Several processes: together they make the updates that one process makes with as many batches accumulated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
import torch

from seqgen.checkpoints.run_checkpoints import read_weights, resolve
from seqgen.config.user_files import import_modules, modules_of
from seqgen.errors import UserError
from seqgen.training.distributed import ProcessGroup, group_from_environment
from seqgen.training.train import _free_port
from tests.commands import SMALL_FCONV, corpus, training_arguments
from tests.training_runs import Lab, everything, lab, records

__all__ = ["lab"]

ROOT = Path(__file__).parent.parent.parent

COMMON = [
    "optimization.max_epoch=2",
    "optimizer=nag",
    "optimizer.momentum=0.5",
    "optimization.lr=[0.5]",
    "common.log_interval=1",
    "dataset.validate_decode=10",
]


@pytest.fixture(scope="module")
def alone(lab: Lab) -> Path:
    return lab.train("alone", *COMMON, "optimization.update_freq=[2]")


@pytest.mark.slow
def test_two_processes_equal_one_that_accumulates(lab: Lab, alone: Path) -> None:
    """Dropout included: a batch's random numbers depend on its place in the update, not on the process."""
    both = lab.train("both", *COMMON, "distributed_training.distributed_world_size=2")
    one, other = records(alone), records(both)
    assert [row["update"] for row in one] == [row["update"] for row in other]
    for left, right in zip(one + records(alone, "valid"), other + records(both, "valid"), strict=True):
        for name in left.keys() - {"event"}:
            assert left[name] == pytest.approx(right[name], rel=1e-4), (name, left, right)
    for name in ("last", "best"):
        wanted = read_weights(alone / "checkpoints" / name)
        got = read_weights(both / "checkpoints" / name)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_signal_stops_all_processes_and_the_run_goes_on(lab: Lab, alone: Path) -> None:
    run = lab.root / "stopped"

    def interrupt() -> None:
        while not (run / "log.jsonl").exists() or not records(run):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    options = [option for option in COMMON if "max_epoch" not in option]
    two = "distributed_training.distributed_world_size=2"
    lab.train("stopped", *options, two, "optimization.max_epoch=50")
    thread.join()
    assert lab.exit_code == 143
    assert records(run, "stop")[-1]["reason"] == "interrupted"
    stopped_at = records(run, "stop")[-1]["update"]
    lab.train("stopped", *options, two, f"optimization.max_update={stopped_at + 2}")
    assert lab.exit_code == 0
    assert resolve(run).name == "best"


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 2])
def test_a_run_is_resumed_by_another_number_of_processes(lab: Lab, alone: Path, first: int) -> None:
    """Within an epoch, with as many batches in an update: the weights are those of a run that was not interrupted."""
    groups = {
        1: ["optimization.update_freq=[2]"],
        2: ["optimization.update_freq=[1]", "distributed_training.distributed_world_size=2"],
    }
    name = f"from-{first}"
    run = lab.train(name, *COMMON, *groups[first], "optimization.max_update=2")
    assert everything(run)["state"]["iterator"]["consumed"] == 4
    lab.train(name, *COMMON, *groups[3 - first])
    for checkpoint in ("last", "best"):
        wanted = read_weights(alone / "checkpoints" / checkpoint)
        torch.testing.assert_close(read_weights(run / "checkpoints" / checkpoint), wanted, rtol=1e-4, atol=1e-5)
    assert [row["update"] for row in records(run)] == [row["update"] for row in records(alone)]


@pytest.mark.slow
def test_fewer_processes_make_smaller_updates_of_the_same_batches(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """What is left of the epoch is used once, and the change is said."""
    options = ["optimization.max_epoch=1", "common.log_format=lines", "common.log_interval=1"]
    run = lab.train("smaller", *options, "distributed_training.distributed_world_size=2", "optimization.max_update=2")
    batches = everything(run)["state"]["iterator"]["batches"]
    lab.train("smaller", *options)
    assert everything(run)["state"]["update"] == 2 + batches - 4
    said = capsys.readouterr().err
    assert "the number of processes is 1, not 2 as before" in said
    assert "an update has 1 batches, not 2 as before, which changes the training result" in said


@pytest.mark.slow
def test_an_error_in_a_process_is_one_sentence(lab: Lab) -> None:
    with pytest.raises(UserError, match="finetune_from: nowhere: there is no such file"):
        lab.train("error", *COMMON, "distributed_training.distributed_world_size=2", "checkpoint.finetune_from=nowhere")


def test_sums_over_one_process() -> None:
    assert ProcessGroup().sum({"a": 1.0}) == {"a": 1.0}
    assert ProcessGroup().gather("x") == ["x"]


def test_sums_over_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(self: ProcessGroup, value: dict[str, float]) -> list[dict[str, float]]:
        return [value, {"a": 2.0, "b": 5.0}, {"a": 4.0}]

    monkeypatch.setattr(ProcessGroup, "gather", gather)
    assert ProcessGroup(0, 3).sum({"a": 1.0}) == {"a": 7.0, "b": 5.0}


def test_classes_of_a_user_are_imported_from_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "net.py").write_text("class Net: pass\n")
    modules = [("mine_not_on_path", str(package / "__init__.py")), ("mine_not_on_path.net", str(package / "net.py"))]
    import_modules(modules)
    module = sys.modules["mine_not_on_path.net"]
    assert modules_of([module.Net]) == modules
    for name, _ in modules:
        monkeypatch.delitem(sys.modules, name)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def starts(how: str) -> list[tuple[list[str], dict[str, str]]]:
    """The commands, each with its variables, that start two processes of training."""
    port = str(_free_port())
    if how == "torchrun":
        return [([*TORCHRUN, "2", "--standalone", "-m"], {})]
    if how == "torchrun on two nodes":
        rendezvous = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port]
        return [([*TORCHRUN, "1", *rendezvous, "--node-rank", str(rank), "-m"], {}) for rank in range(2)]
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": port}
    return [
        ([sys.executable, "-m"], {**slurm, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in range(2)
    ]


@mock.patch.dict(os.environ)
def test_variables_of_slurm() -> None:
    step = {"STEP_NUM_TASKS": "8", "PROCID": "5", "LOCALID": "1", "JOB_ID": "70012", "STEP_ID": "3"}
    for nodes, first in [
        ("gpu[07-09,12],login", "gpu07"),
        ("gpu3,gpu5", "gpu3"),
        ("one.example.org", "one.example.org"),
        ("rack[1,3]-node", "rack1-node"),
    ]:
        os.environ.update({f"SLURM_{name}": value for name, value in {**step, "STEP_NODELIST": nodes}.items()})
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        assert group_from_environment() == ProcessGroup(5, 8)
        assert os.environ["MASTER_ADDR"] == first
        assert (os.environ["LOCAL_RANK"], os.environ["MASTER_PORT"]) == ("1", "20015")


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["torchrun", "torchrun on two nodes", "srun"])
def test_other_programs_start_the_run_of_one_process(tmp_path: Path, how: str) -> None:
    """Two processes write one run, with the weights of one process that accumulates two batches."""
    data = corpus(tmp_path / "data")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = [*SMALL_FCONV, "optimization.max_update=4"]
    together = [*training_arguments(data, tmp_path / "together"), *options]
    commands = [
        subprocess.Popen([*program, "seqgen.cli.train", *together], cwd=ROOT, env={**environment, **variables})
        for program, variables in starts(how)
    ]
    assert [command.wait(120) for command in commands] == [0] * len(commands)
    alone = [*training_arguments(data, tmp_path / "alone"), *options, "optimization.update_freq=[2]"]
    subprocess.run([sys.executable, "-m", "seqgen.cli.train", *alone], check=True, cwd=ROOT, env=environment)
    one, two = (read_weights(resolve(tmp_path / name)) for name in ("alone", "together"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=1e-4, rtol=1e-4)
