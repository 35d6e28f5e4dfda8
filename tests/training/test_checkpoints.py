"""Checkpoints are read exactly as written, survive a kill at any time, and are refused if damaged."""

import errno
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from seqgen.checkpoints import serialization
from seqgen.checkpoints.run_checkpoints import Checkpoints, read_training_state, read_weights, resolve
from seqgen.checkpoints.serialization import pack, read_tensors, unpack, write_tensors
from seqgen.core.errors import CheckpointError
from seqgen.training.averaging import average, last_checkpoints
from seqgen.training.training_loop import TrainingLoop
from tests.hostile import damage_file

# -- values to files and back -------------------------------------------------------------------------------------


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3)))
def test_plain_values_come_back_exactly(value: Any) -> None:
    packed, tensors = pack({"x": value})
    assert unpack(packed, tensors) == {"x": value}


def test_state_with_tensors_of_all_kinds(tmp_path: Path) -> None:
    state = {
        "scalar": torch.tensor(3.0),
        "half": [torch.randn(2).half(), torch.randn(2).bfloat16()],
        "bits": {"flags": torch.tensor([True, False]), "bytes": torch.arange(5, dtype=torch.uint8)},
        "strided": torch.arange(6.0).view(2, 3).t(),
        "slice": torch.arange(6.0)[2:4],
        "empty": torch.empty(0, 3),
        "best": -math.inf,
    }
    Checkpoints(tmp_path).save(["last"], {}, state)
    read = read_training_state(tmp_path / "checkpoints" / "last")
    torch.testing.assert_close(read, state, rtol=0, atol=0)


@pytest.mark.parametrize("value", [object(), {1: 2}, {"x": {3, 4}}])
def test_what_cannot_be_saved_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError):
        pack({"a": value})


def test_shared_weights_are_written_once_and_read_under_every_name(tmp_path: Path) -> None:
    """A view in another order is another tensor."""
    table, square = torch.randn(50, 4), torch.randn(3, 3)
    written = {"in": table, "out": table, "copy": table.clone(), "view": table.view(200)}
    written |= {"plain": square, "transposed": square.t(), "row": square[0], "column": square[:, 0]}
    write_tensors(tmp_path / "x", written)
    assert (tmp_path / "x").stat().st_size < 4 * table.numel() * 4
    read = read_tensors(tmp_path / "x")
    assert all(torch.equal(read[name], value) for name, value in written.items())
    assert read["in"] is read["out"]


def test_equal_tensors_give_equal_files(tmp_path: Path) -> None:
    table = torch.randn(5, 4)
    names = ["own", "a", "ü", 'quo"ted', "back\\slash", "line\nfeed", "bell\x07", "z"]
    for number in range(6):
        write_tensors(tmp_path / str(number), dict.fromkeys(names, table) | {"other": torch.arange(3)})
    assert len({(tmp_path / str(number)).read_bytes() for number in range(6)}) == 1
    assert set(read_tensors(tmp_path / "0")) == {*names, "other"}
    assert torch.equal(read_tensors(tmp_path / "0")["bell\x07"], table)


# -- folders ------------------------------------------------------------------------------------------------------


def weights(value: float) -> dict[str, Tensor]:
    return {"w": torch.full((3, 2), value)}


def save(run: Path, names: list[str], value: float) -> None:
    Checkpoints(run).save(names, weights(value), {"update": int(value), "x": torch.full((4,), value)})


def value_of(checkpoint: Path) -> float:
    """The value from which every file of a checkpoint was made."""
    value = read_weights(checkpoint)["w"][0, 0].item()
    state = read_training_state(checkpoint)
    assert state["update"] == value == state["x"][0].item()
    return value


def test_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    manager = Checkpoints(tmp_path)
    for n in (1, 2, 9, 10):
        save(tmp_path, [f"update_{n}", f"epoch_{n}", "best", "last"], n)
    manager.prune("update", 2)
    manager.prune("epoch", -1)
    for keep in (4, 5, 7, 100):  # also more than exist
        manager.prune("epoch", keep)
    names = {path.name for path in manager.folder.iterdir()}
    one, other = (manager.folder / name / "model.safetensors" for name in ("last", "epoch_10"))
    assert one.samefile(other), "checkpoints of the same update share their files"
    assert names == {"best", "last", "update_9", "update_10", "epoch_1", "epoch_2", "epoch_9", "epoch_10"}
    manager.prune("epoch", 0)
    manager.prune("update", 0)
    assert {path.name for path in manager.folder.iterdir()} == {"best", "last"}


class Killed(BaseException):
    """Simulates SIGKILL: no operation follows it."""


def operations(monkeypatch: pytest.MonkeyPatch, limit: int, error: Callable[[str], BaseException]) -> list[str]:
    """Let the ``limit``-th operation on files fail, and after a kill all that follow; list what was done."""
    done: list[str] = []
    kill = error is Killed

    def guard(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            done.append(name)
            if len(done) == limit or (kill and len(done) > limit):
                raise error(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, guarded)

    for name in ("rename", "mkdir", "write_text", "chmod"):
        guard(Path, name)
    guard(os, "link")
    guard(os, "fsync")
    if kill:  # deleting works on a full disk
        guard(shutil, "rmtree")
    guard(serialization.safetensors.torch, "save_file")
    return done


def full_disk(name: str) -> Exception:
    if name == "save_file":
        text = 'I/O error: Os { code: 28, kind: StorageFull, message: "No space left on device" }'
        return serialization.safetensors.SafetensorError(f"Error while serializing: {text}")
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("names", [["last"], ["update_2", "best", "last"]])
@pytest.mark.parametrize("error", [Killed, full_disk])
def test_a_kill_or_a_full_disk_at_any_operation_leaves_a_whole_checkpoint(
    error: Callable[[str], BaseException], names: list[str], tmp_path: Path
) -> None:
    failures: list[BaseException] = []
    for limit in range(1, 100):
        run = tmp_path / str(limit)
        save(run, names, 1)
        manager = Checkpoints(run)
        with pytest.MonkeyPatch.context() as patch:
            done = operations(patch, limit, error)
            try:
                manager.save(names, weights(2), {"update": 2, "x": torch.full((4,), 2.0)})
            except (Killed, CheckpointError) as caught:
                failures.append(caught)
        assert value_of(resolve(run)) in (1, 2)  # a process that only reads, and repairs nothing
        recovered = Checkpoints(run)
        newest = recovered.resumable()[0]
        assert value_of(newest) in (1, 2)
        assert sorted(path.name for path in recovered.folder.iterdir()) == sorted(names)
        for path in recovered.folder.iterdir():
            assert value_of(path) >= value_of(newest), "nothing is older than last"
        save(run, names, 3)
        assert value_of(resolve(run)) == 3
        if len(done) < limit:
            break
    assert len(failures) >= 8
    said = [str(caught) for caught in failures if error is full_disk]
    assert all("free some space" in text and "earlier checkpoints are intact" in text for text in said)


def test_only_our_own_temporary_folders_are_removed(tmp_path: Path) -> None:
    save(tmp_path, ["last"], 1)
    (tmp_path / "checkpoints" / ".best.tmp").mkdir()
    (tmp_path / "checkpoints" / ".notes.tmp").write_text("mine")
    (tmp_path / "checkpoints" / ".linked.tmp").symlink_to(tmp_path / "checkpoints" / "last")
    folder = Checkpoints(tmp_path).folder
    assert {path.name for path in folder.iterdir()} == {"last", ".notes.tmp", ".linked.tmp"}
    assert value_of(folder / "last") == 1


def test_a_kill_while_pruning_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    for limit in (1, 2, 3):
        run = tmp_path / str(limit)
        save(run, ["update_1", "last"], 1)
        manager = Checkpoints(run)
        with pytest.MonkeyPatch.context() as patch:
            operations(patch, limit, Killed)
            with pytest.raises(Killed):
                manager.prune("update", 0)
        for path in Checkpoints(run).folder.iterdir():
            assert value_of(path) == 1


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "training_state.safetensors", "training_state.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_damaged_files_are_refused(name: str, damage: str, tmp_path: Path) -> None:
    save(tmp_path, ["last"], 1)
    path = tmp_path / "checkpoints" / "last" / name
    damage_file(path, damage)
    with pytest.raises(CheckpointError, match=f"{name}.*(damaged or truncated|missing)"):
        value_of(path.parent)


def test_resolve(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "run" / "checkpoints"
    for name in ("update_5", "last", "best"):  # the best one is taken first
        save(run, [name], 5)
        assert name == "update_5" or resolve(run) == resolve(str(run)) == folder / name
    assert resolve(folder / "update_5") == resolve(folder / "update_5" / "model.safetensors") == folder / "update_5"


@pytest.mark.parametrize("moment", ["verify_checksums", "read_tensors"])
def test_weights_are_never_those_of_two_checkpoints(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is replaced while it is read is read again, even if nothing was wrong with it."""
    save(tmp_path, ["last"], 1)
    original, calls = getattr(serialization, moment), []

    def replace_first(*given: Any) -> Any:
        found = original(*given)
        calls.append(given)
        if len(calls) == 1:
            save(tmp_path, ["last"], 2)
            if moment == "verify_checksums":
                raise CheckpointError("its checksum differs")
        return found

    monkeypatch.setattr(serialization, moment, replace_first)
    assert read_weights(resolve(tmp_path))["w"][0, 0] == 2


# -- averages -----------------------------------------------------------------------------------------------------


def test_average(tmp_path: Path) -> None:
    """Of weights that are shared, of integers, which are those of the first, and of equal ones, which stay the same."""
    table, same = torch.randn(300, 4), torch.randn(100)
    for update, value in ((1, 3.0), (2, 8.0)):
        tied, count = {"in": table, "out": table}, torch.tensor(update)
        model = {"w": torch.tensor([value, 0.0]), "same": same, "count": count, **tied}
        Checkpoints(tmp_path).save([f"update_{update}"], model, {"update": update})
    Checkpoints(tmp_path).save(["average"], average(last_checkpoints(tmp_path, 2) * 3), None)
    folder = resolve(tmp_path / "checkpoints" / "average")
    found = read_weights(folder)
    torch.testing.assert_close(found["w"], torch.tensor([5.5, 0.0]), rtol=0, atol=0)
    assert found["count"] == 1
    assert torch.equal(found["same"], same)
    assert found["in"] is found["out"]
    assert (folder / "model.safetensors").stat().st_size < 1.8 * table.numel() * 4


def test_the_last_checkpoints_are_those_of_the_last_updates(tmp_path: Path) -> None:
    """Of epochs and updates that alternate; ``update_8`` and ``epoch_3`` are the same update, which counts once."""
    saved = {"epoch_1": 3, "update_2": 2, "update_4": 4, "epoch_2": 6, "update_8": 8, "epoch_3": 8, "update_10": 10}
    for name, update in saved.items():
        save(tmp_path, [name], update)
    updates = sorted({*saved.values()})
    for count in range(1, len(updates) + 1):
        assert [saved[path.name] for path in last_checkpoints(tmp_path, count)] == updates[-count:]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("failing", [0, 1])
def test_no_rank_resumes_from_a_checkpoint_that_one_cannot_read(rank: int, failing: int, tmp_path: Path) -> None:
    for update in (1, 2):
        save(tmp_path, [f"update_{update}"], update)
    paths = [tmp_path / "checkpoints" / f"update_{update}" for update in (2, 1)]
    others = iter([[] if rank == 0 else paths, "cannot be read here" * (rank != failing), ""])  # what the other says
    group = SimpleNamespace(is_main=rank == 0, gather=lambda value, *_: [value, next(others)][:: 1 - 2 * rank])
    loaded: list[Any] = []
    run: Any = SimpleNamespace(group=group, notes=[], trainer=SimpleNamespace(update=1), _regrouped=lambda state: "")
    run.checkpoints = Checkpoints(tmp_path) if rank == 0 else None
    run._load_state = lambda *given: loaded.extend(given)
    if rank == failing:
        damage_file(paths[0] / "model.safetensors", "truncate")
    assert TrainingLoop._resume(run)
    path, _, state = loaded
    assert path == paths[1]
    assert state["update"] == 1
    assert len([note for note in run.notes if note.endswith("an older checkpoint is used in its place")]) == 1
