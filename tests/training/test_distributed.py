"""Several processes: together they make the updates that one process makes with as many batches accumulated."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqgen.checkpoints.run_checkpoints import read_weights, resolve
from seqgen.training.distributed import ProcessGroup
from tests.commands import SMALL_FCONV, corpus, training_arguments
from tests.training_runs import Lab, everything, free_port, lab, records

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


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def together(lab: Lab, name: str, *overrides: str) -> Path:
    """Train a run, or resume it, in two processes that ``torchrun`` starts; return its folder."""
    folder = lab.root / name
    folder.mkdir(exist_ok=True)
    lab.task(lab.config(*overrides), folder)  # the tokenizer is copied once
    program = [*TORCHRUN, "2", "--standalone", "-m", "tests.training_runs", str(lab.root), name, *overrides]
    subprocess.run(program, check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folder


@pytest.fixture(scope="module")
def alone(lab: Lab) -> Path:
    return lab.train("alone", *COMMON, "optimization.update_freq=[2]")


@pytest.mark.slow
def test_two_processes_equal_one_that_accumulates(lab: Lab, alone: Path) -> None:
    """Dropout included: a batch's random numbers depend on its place in the update, not on the process."""
    both = together(lab, "both", *COMMON)
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
@pytest.mark.parametrize("first", [1, 2])
def test_a_run_is_resumed_by_another_number_of_processes(lab: Lab, alone: Path, first: int) -> None:
    """Within an epoch, with as many batches in an update: the weights are those of a run that was not interrupted."""
    name = f"from-{first}"

    def train(processes: int, *options: str) -> Path:
        start = lab.train if processes == 1 else functools.partial(together, lab)
        return start(name, *COMMON, f"optimization.update_freq=[{2 // processes}]", *options)

    run = train(first, "optimization.max_update=2")
    assert everything(run)["state"]["iterator"]["consumed"] == 4
    train(3 - first)
    for checkpoint in ("last", "best"):
        wanted = read_weights(alone / "checkpoints" / checkpoint)
        torch.testing.assert_close(read_weights(run / "checkpoints" / checkpoint), wanted, rtol=1e-4, atol=1e-5)
    assert [row["update"] for row in records(run)] == [row["update"] for row in records(alone)]


@pytest.mark.slow
def test_fewer_processes_make_smaller_updates_of_the_same_batches(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """What is left of the epoch is used once, and the change is said."""
    options = ["optimization.max_epoch=1", "common.log_format=lines", "common.log_interval=1"]
    run = together(lab, "smaller", *options, "optimization.max_update=2")
    batches = everything(run)["state"]["iterator"]["batches"]
    lab.train("smaller", *options)
    assert everything(run)["state"]["update"] == 2 + batches - 4
    said = capsys.readouterr().err
    assert "the number of processes is 1, not 2 as before" in said
    assert "an update has 1 batches, not 2 as before, which changes the training result" in said


def test_sums_over_one_process() -> None:
    assert ProcessGroup().sum({"a": 1.0}) == {"a": 1.0}
    assert ProcessGroup().gather("x") == ["x"]


def test_sums_over_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(self: ProcessGroup, value: dict[str, float]) -> list[dict[str, float]]:
        return [value, {"a": 2.0, "b": 5.0}, {"a": 4.0}]

    monkeypatch.setattr(ProcessGroup, "gather", gather)
    assert ProcessGroup(0, 3).sum({"a": 1.0}) == {"a": 7.0, "b": 5.0}


def starts(nodes: int) -> list[list[str]]:
    """The commands that start two processes of training."""
    if nodes == 1:
        return [[*TORCHRUN, "2", "--standalone", "-m"]]
    rendezvous = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return [[*TORCHRUN, "1", *rendezvous, "--node-rank", str(rank), "-m"] for rank in range(2)]


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [1, 2])
def test_torchrun_starts_the_run_of_one_process(tmp_path: Path, nodes: int) -> None:
    """Two processes write one run, with the weights of one process that accumulates two batches."""
    data = corpus(tmp_path / "data")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = [*SMALL_FCONV, "optimization.max_update=4"]
    together = [*training_arguments(data, tmp_path / "together"), *options]
    commands = [
        subprocess.Popen([*program, "seqgen.cli.train", *together], cwd=ROOT, env=environment)
        for program in starts(nodes)
    ]
    assert [command.wait(120) for command in commands] == [0] * len(commands)
    alone = [*training_arguments(data, tmp_path / "alone"), *options, "optimization.update_freq=[2]"]
    subprocess.run([sys.executable, "-m", "seqgen.cli.train", *alone], check=True, cwd=ROOT, env=environment)
    one, two = (read_weights(resolve(tmp_path / name)) for name in ("alone", "together"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=1e-4, rtol=1e-4)
