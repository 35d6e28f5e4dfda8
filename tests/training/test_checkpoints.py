"""Checkpoints are read exactly as written, survive a kill at any time, and are refused if damaged."""

from __future__ import annotations

import errno
import math
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

import seqgen.models  # noqa: F401  # declares the checkpoint loaders
from seqgen.checkpoints import serialization
from seqgen.checkpoints.model_weights import load_weights
from seqgen.checkpoints.run_checkpoints import (
    Checkpoints,
    read_training_state,
    read_weights,
    resolve,
)
from seqgen.checkpoints.serialization import pack, read_tensors, unpack, write_tensors
from seqgen.core.errors import CheckpointError, UserError
from seqgen.system.files import run_lock, write_atomically
from seqgen.training.averaging import average, last_checkpoints
from seqgen.training.distributed import ProcessGroup
from seqgen.training.run_log import is_better
from seqgen.training.training_loop import TrainingRun
from tests.hostile import damage_file

# -- values to files and back -------------------------------------------------------------------------------------


def values() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    return st.recursive(leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3))


@given(values())
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
    table = torch.randn(50, 4)
    write_tensors(tmp_path / "x", {"in": table, "out": table, "copy": table.clone(), "view": table.view(200)})
    assert (tmp_path / "x").stat().st_size < 4 * table.numel() * 4
    read = read_tensors(tmp_path / "x")
    assert all(torch.equal(read[name].flatten(), table.flatten()) for name in ("in", "out", "copy", "view"))
    assert read["in"] is read["out"]


def test_a_view_in_another_order_is_another_tensor(tmp_path: Path) -> None:
    square = torch.randn(3, 3)
    views = {"plain": square, "transposed": square.t(), "row": square[0], "column": square[:, 0]}
    write_tensors(tmp_path / "x", views)
    read = read_tensors(tmp_path / "x")
    assert all(torch.equal(read[name], value) for name, value in views.items())


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


def test_save_replaces_and_links(tmp_path: Path) -> None:
    save(tmp_path, ["best", "last"], 1)
    save(tmp_path, ["update_2", "last"], 2)
    found = {path.name: value_of(path) for path in (tmp_path / "checkpoints").iterdir()}
    assert found == {"best": 1, "last": 2, "update_2": 2}
    folder = tmp_path / "checkpoints"
    assert (folder / "last" / "model.safetensors").samefile(folder / "update_2" / "model.safetensors")


def test_no_pickle_and_readable_by_others(tmp_path: Path) -> None:
    save(tmp_path, ["last"], 1)
    for path in (tmp_path / "checkpoints" / "last").iterdir():
        with pytest.raises((pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError)):
            pickle.loads(path.read_bytes())
        (tmp_path / "other").touch()
        assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    manager = Checkpoints(tmp_path)
    for n in (1, 2, 9, 10):
        save(tmp_path, [f"update_{n}", f"epoch_{n}", "best", "last"], n)
    manager.prune("update", 2)
    manager.prune("epoch", -1)
    for keep in (4, 5, 7, 100):  # also more than exist
        manager.prune("epoch", keep)
    names = {path.name for path in manager.folder.iterdir()}
    assert names == {"best", "last", "update_9", "update_10", "epoch_1", "epoch_2", "epoch_9", "epoch_10"}
    manager.prune("epoch", 0)
    manager.prune("update", 0)
    assert {path.name for path in manager.folder.iterdir()} == {"best", "last"}


class Killed(BaseException):
    """Simulates SIGKILL: no operation follows it."""


def operations(
    monkeypatch: pytest.MonkeyPatch, limit: int, error: Callable[[], BaseException], after: bool
) -> list[str]:
    """Let the ``limit``-th operation on files fail (and all after it, if ``after``); list what was done."""
    done: list[str] = []

    def guard(owner: Any, name: str, label: str) -> None:
        original = getattr(owner, name)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            done.append(label)
            if len(done) == limit or (after and len(done) > limit):
                raise error()
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, guarded)

    for name in ("rename", "mkdir", "write_text", "chmod"):
        guard(Path, name, name)
    guard(os, "link", "link")
    guard(os, "fsync", "fsync")
    if after:  # deleting works on a full disk
        guard(shutil, "rmtree", "rmtree")
    guard(serialization.safetensors.torch, "save_file", "save_file")
    return done


@pytest.mark.parametrize("names", [["last"], ["update_2", "best", "last"]])
def test_a_kill_at_any_operation_leaves_a_whole_checkpoint(names: list[str], tmp_path: Path) -> None:
    limit = 0
    while True:
        limit += 1
        run = tmp_path / str(limit)
        save(run, names, 1)
        manager = Checkpoints(run)
        with pytest.MonkeyPatch.context() as patch:
            done = operations(patch, limit, Killed, after=True)
            try:
                manager.save(names, weights(2), {"update": 2, "x": torch.full((4,), 2.0)})
                finished = True
            except Killed:
                finished = False
        assert value_of(resolve(run)) in (1, 2)  # a process that only reads, and repairs nothing
        recovered = Checkpoints(run)
        newest = recovered.resumable()[0]
        assert value_of(newest) in (1, 2)
        assert sorted(path.name for path in recovered.folder.iterdir()) == sorted(names)
        for path in recovered.folder.iterdir():
            assert value_of(path) >= value_of(newest), "nothing is older than last"
        save(run, names, 3)
        assert value_of(resolve(run)) == 3
        if finished:
            assert len(done) >= 10
            return


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
            operations(patch, limit, Killed, after=True)
            with pytest.raises(Killed):
                manager.prune("update", 0)
        for path in Checkpoints(run).folder.iterdir():
            assert value_of(path) == 1


def test_a_full_disk_is_a_sentence_and_earlier_checkpoints_stay(tmp_path: Path) -> None:
    save(tmp_path, ["best", "last"], 1)
    manager = Checkpoints(tmp_path)
    messages: list[str] = []
    for limit in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            done = operations(patch, limit, lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), after=False)
            try:
                manager.save(["best", "last"], weights(1), {"update": 1, "x": torch.full((4,), 1.0)})
            except CheckpointError as error:
                messages.append(str(error))
            if len(done) < limit:
                break
        assert value_of(resolve(tmp_path)) == 1
        assert value_of(Checkpoints(tmp_path).folder / "last") == 1
    assert len(messages) >= 8
    assert all("free some space" in text and "earlier checkpoints are intact" in text for text in messages)


def test_a_library_error_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise serialization.safetensors.SafetensorError(
            'Error while serializing: I/O error: Os { code: 28, kind: StorageFull, message: "No space left on device" }'
        )

    monkeypatch.setattr(serialization.safetensors.torch, "save_file", fail)
    with pytest.raises(CheckpointError, match=r"free some space.*earlier checkpoints are intact"):
        save(tmp_path, ["last"], 1)


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "training_state.safetensors", "training_state.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_damaged_files_are_refused(name: str, damage: str, tmp_path: Path) -> None:
    save(tmp_path, ["last"], 1)
    path = tmp_path / "checkpoints" / "last" / name
    damage_file(path, damage)
    with pytest.raises(CheckpointError, match=f"{name}.*(damaged or truncated|missing)"):
        value_of(path.parent)


def test_missing_checksums_are_refused(tmp_path: Path) -> None:
    save(tmp_path, ["last"], 1)
    (tmp_path / "checkpoints" / "last" / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match="copied whole"):
        read_weights(resolve(tmp_path))


class Bomb:
    """Creates a file if it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["model.pt", "checkpoint_best.pkl", "pytorch_model.bin", "weights"])
def test_code_is_never_run(name: str, tmp_path: Path) -> None:
    exploded = tmp_path / "exploded"
    if name == "model.pt":
        torch.save(Bomb(exploded), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(pickle.dumps(Bomb(exploded)))
    with pytest.raises(CheckpointError, match="can contain code and is never loaded"):
        resolve(tmp_path / name)
    with pytest.raises(CheckpointError, match="neither a run folder nor a checkpoint"):
        resolve(tmp_path)
    save(tmp_path, ["last"], 1)
    inside = tmp_path / "checkpoints" / "last" / "model.safetensors"
    inside.write_bytes((tmp_path / name).read_bytes())  # under a harmless name and with a correct checksum
    serialization.write_checksums(inside.parent)
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        read_weights(inside.parent)
    assert not exploded.exists()


def test_resolve(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "run" / "checkpoints"
    save(run, ["update_5"], 5)
    with pytest.raises(CheckpointError, match="without checkpoints best and last; it has: update_5"):
        resolve(run)
    save(run, ["last"], 6)
    assert resolve(run) == folder / "last"
    save(run, ["best"], 7)
    assert resolve(run) == resolve(str(run)) == folder / "best"
    assert resolve(folder / "update_5") == resolve(folder / "update_5" / "model.safetensors") == folder / "update_5"
    for path, reason in [
        (tmp_path / "nowhere", "no such file or folder"),
        (tmp_path, "contains runs; give one of them, such as .*run"),
        (folder, "has the checkpoints of a run; give the run, .*run, .*or one of: .*best, .*last, .*update_5"),
        (f"[{run},b]", "give one model without brackets, such as .*run$"),
        (folder / "last" / "training_state.json", "not a checkpoint"),
    ]:
        with pytest.raises(CheckpointError, match=reason):
            resolve(path)


class Net(nn.Module):
    def __init__(self, vocab: int = 10, width: int = 4, positions: int = 8):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.embed_positions = nn.Embedding(positions, width)
        self.out = nn.Linear(width, 3)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Net(vocab=12), "the vocabulary does not fit: the checkpoint was trained with 10 tokens.* has 12"),
        (Net(positions=9), r"of another shape: embed_positions.weight \(\(8, 4\), here \(9, 4\)\)"),
        (nn.Sequential(nn.Linear(4, 3)), "missing: 0.bias, 0.weight; unknown to the model: embed.weight"),
    ],
)
def test_weights_that_do_not_fit(other: nn.Module, reason: str, tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(["last"], Net().state_dict(), None)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=reason):
        load_weights(other, resolve(tmp_path))
    torch.testing.assert_close(dict(other.state_dict()), before, rtol=0, atol=0)


def test_a_reader_copes_with_a_checkpoint_that_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, ["last"], 1)
    original, calls = serialization.verify_checksums, []

    def replace_first(folder: Path, names: list[str]) -> None:
        calls.append(folder)
        if len(calls) == 1:
            save(tmp_path, ["last"], 2)
            raise CheckpointError("its checksum differs")
        original(folder, names)

    monkeypatch.setattr(serialization, "verify_checksums", replace_first)
    assert read_weights(resolve(tmp_path))["w"][0, 0] == 2


def test_weights_are_never_those_of_two_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is replaced while it is read is read again, even if nothing was wrong with it."""
    save(tmp_path, ["last"], 1)
    original, calls = serialization.read_tensors, []

    def replace_first(path: Path) -> dict[str, Tensor]:
        found = original(path)
        calls.append(path)
        if len(calls) == 1:
            save(tmp_path, ["last"], 2)
        return found

    monkeypatch.setattr(serialization, "read_tensors", replace_first)
    assert read_weights(resolve(tmp_path))["w"][0, 0] == 2


# -- averages -----------------------------------------------------------------------------------------------------


def test_average(tmp_path: Path) -> None:
    for update, value in [(1, 1.0), (2, 3.0), (3, 8.0)]:
        model = {"w": torch.tensor([value, 0.0]), "tied": torch.ones(2), "count": torch.tensor(update)}
        name = "epoch_1" if update == 2 else f"update_{update}"
        Checkpoints(tmp_path).save([name, "last"], model, {"update": update})
    chosen = last_checkpoints(tmp_path, 2)
    assert [path.name for path in chosen] == ["epoch_1", "update_3"], "in the order of the updates"
    got = average(chosen)
    assert got["w"].tolist() == [5.5, 0.0]
    assert got["w"].dtype == torch.float32
    assert got["count"] == 2
    Checkpoints(tmp_path).save(["average"], got, None)
    assert torch.equal(read_weights(resolve(tmp_path / "checkpoints" / "average"))["w"], got["w"])
    with pytest.raises(CheckpointError, match="5 checkpoints are to be averaged, but the run has only 3"):
        last_checkpoints(tmp_path, 5)


def test_the_last_checkpoints_are_those_of_the_last_updates(tmp_path: Path) -> None:
    """Of epochs and updates that alternate; ``update_8`` and ``epoch_3`` are the same update, which counts once."""
    saved = {"epoch_1": 3, "update_2": 2, "update_4": 4, "epoch_2": 6, "update_8": 8, "epoch_3": 8, "update_10": 10}
    for name, update in saved.items():
        Checkpoints(tmp_path).save([name], {"w": torch.ones(1)}, {"update": update})
    updates = sorted({*saved.values()})
    for count in range(1, len(updates) + 1):
        assert [saved[path.name] for path in last_checkpoints(tmp_path, count)] == updates[-count:]


class TwoRanks(ProcessGroup):
    """One of two ranks; what the other one gathers is given."""

    other: Iterator[Any]

    def gather(self, value: Any, patience: Any = None) -> list[Any]:
        both = [value, next(self.other)]
        return both[::-1] if self.rank else both


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("failing", [0, 1])
def test_no_rank_resumes_from_a_checkpoint_that_one_cannot_read(rank: int, failing: int, tmp_path: Path) -> None:
    for update in (1, 2):
        Checkpoints(tmp_path).save([f"update_{update}"], {"w": torch.ones(1)}, {"update": update})
    paths = [tmp_path / "checkpoints" / f"update_{update}" for update in (2, 1)]
    group = TwoRanks(rank, 2)
    problems = ["cannot be read here", ""] if rank != failing else ["", ""]
    group.other = iter([[] if rank == 0 else paths, *problems])
    loaded: list[Any] = []
    run: Any = SimpleNamespace(group=group, notes=[], trainer=SimpleNamespace(update=1), _regrouped=lambda state: "")
    run.checkpoints = Checkpoints(tmp_path) if rank == 0 else None
    run._load_state = lambda *given: loaded.extend(given)
    if rank == failing:
        damage_file(paths[0] / "model.safetensors", "truncate")
    assert TrainingRun._resume(run)
    path, _, state = loaded
    assert path == paths[1]
    assert state["update"] == 1
    assert len([note for note in run.notes if note.endswith("an older checkpoint is used in its place")]) == 1


def test_average_of_many_equal_ones_is_the_same(tmp_path: Path) -> None:
    weight = {"w": torch.randn(100)}
    Checkpoints(tmp_path).save(["last"], weight, None)
    assert torch.equal(average([resolve(tmp_path)] * 7)["w"], weight["w"])


def test_average_keeps_weights_shared(tmp_path: Path) -> None:
    table = torch.randn(300, 4)
    Checkpoints(tmp_path).save(["update_1", "last"], {"in": table, "out": table}, {"update": 1})
    Checkpoints(tmp_path).save(["average"], average(last_checkpoints(tmp_path, 1)), None)
    assert (tmp_path / "checkpoints" / "average" / "model.safetensors").stat().st_size < 1.5 * table.numel() * 4


def test_average_of_different_models(tmp_path: Path) -> None:
    Checkpoints(tmp_path / "a").save(["last"], {"w": torch.ones(2), "b": torch.ones(1)}, None)
    Checkpoints(tmp_path / "b").save(["last"], {"w": torch.ones(3)}, None)
    with pytest.raises(CheckpointError, match=r"differ in names or shapes.*: b, w"):
        average([resolve(tmp_path / "a"), resolve(tmp_path / "b")])


# -- locks and single files ---------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from seqgen.system.files import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_in_use_is_refused_and_a_dead_process_is_no_obstacle(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(CheckpointError, match="in use by another process; wait for it"),
            run_lock(tmp_path),
        ):
            pass
    finally:
        holder.kill()
        holder.wait()
    with run_lock(tmp_path):
        pass


def test_write_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    write_atomically(path, b"old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="free some space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["config.yaml"]


def test_of_equal_scores_the_earlier_one_is_the_best() -> None:
    for metric, better, worse in (("loss", 1.0, 2.0), ("bleu", 30.0, 20.0)):
        assert is_better(better, None, metric)
        assert is_better(better, worse, metric)
        assert not is_better(worse, better, metric)
        assert not is_better(better, better, metric)
        assert not is_better(float("nan"), None, metric)
        assert not is_better(None, None, metric)
