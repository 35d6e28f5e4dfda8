"""Several processes: together they make the updates that one process makes with as many batches accumulated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from seqgen.checkpoints.run_checkpoints import read_weights, resolve
from seqgen.errors import UserError
from seqgen.training.distributed import ProcessGroup
from seqgen.user_files import import_modules, modules_of
from tests.commands import SMALL_FCONV, corpus, training_arguments
from tests.training_runs import Lab, everything, lab, records

__all__ = ["lab"]

ROOT = Path(__file__).parent.parent

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


@pytest.mark.slow
def test_torchrun_trains_the_run_of_one_process(tmp_path: Path) -> None:
    """Two processes under torchrun write one run, with the weights of one process that accumulates two batches."""
    data = corpus(tmp_path / "data")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = [*SMALL_FCONV, "optimization.max_update=4"]
    together = [*training_arguments(data, tmp_path / "together"), *options]
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*program, "-m", "seqgen.cli.train", *together], check=True, cwd=ROOT, env=environment)
    alone = [*training_arguments(data, tmp_path / "alone"), *options, "optimization.update_freq=[2]"]
    subprocess.run([sys.executable, "-m", "seqgen.cli.train", *alone], check=True, cwd=ROOT, env=environment)
    one, two = (read_weights(resolve(tmp_path / name)) for name in ("alone", "together"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=1e-4, rtol=1e-4)
