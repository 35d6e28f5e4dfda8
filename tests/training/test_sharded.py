"""Sharded checkpoints: written in the background, read by any number of processes, damaged ones refused."""

from __future__ import annotations

import errno
import json
import os
import pickle
import time
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn

from seqgen.checkpoints import serialization
from seqgen.checkpoints.run_checkpoints import (
    Checkpoints,
    read_training_state,
    read_weights,
    resolve,
    update_of,
    weight_shapes,
)
from seqgen.checkpoints.sharded import is_sharded
from seqgen.config import DistributedConfig
from seqgen.errors import CheckpointError
from seqgen.training import saving as sharded_saving
from seqgen.training.averaging import average
from seqgen.training.criteria import CriterionOut
from seqgen.training.distributed import LossModule, ProcessGroup, _sharded, whole
from seqgen.training.saving import ShardedSaver
from tests.commands import command
from tests.hostile import damage_file
from tests.parallel_training import seen_examples, train_in, train_together
from tests.training.test_checkpoints import Bomb, Killed, operations
from tests.training.test_parallel import alone, compare, runs
from tests.training_runs import Lab, assert_identical, everything, lab

__all__ = ["lab"]

SHORT = ["dataset.validate_decode=0", "dataset.max_tokens=120", "optimization.max_epoch=1", "optimizer.momentum=0.5"]
SHORT += ["optimizer=nag", "optimization.lr=[0.5]", "optimization.ema_decay=0.9"]


# -- whole runs ---------------------------------------------------------------------------------------------------


def tied(weights: dict[str, torch.Tensor]) -> set[tuple[str, str]]:
    """The pairs of names that have the same tensor."""
    return {(one, two) for one, two in combinations(weights, 2) if weights[one] is weights[two]}


@pytest.mark.slow
def test_what_two_processes_save_one_reads(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Decoding, averaging, converting and resuming need not know how a checkpoint was written."""
    name, dtype, keys = runs(lab, 2, "fsdp", "float64", *SHORT)["transformer"]
    train_together(lab.root, 2, [(name, dtype, [*keys, "optimization.max_update=2"])], "fork")
    run = lab.root / name
    last = run / "checkpoints" / "last"
    assert is_sharded(last)
    assert resolve(run).name in ("best", "last")
    weights, state = read_weights(last), everything(run)["state"]
    shapes = {key: value.shape for key, value in weights.items()}
    assert {key: value.shape for key, value in weight_shapes(last).items()} == shapes
    assert_identical(average([last, last]), weights)
    before = alone(lab, ("two-updates", dtype, [*keys, "optimization.max_update=2"]), 2)
    compare(before, run, 1e-9)
    assert tied(weights) == tied(read_weights(before / "checkpoints" / "last")) != set()

    plain = lab.root / "plain"
    outcome = command("convert", f"path={run}", f"output={plain}")
    assert outcome.code == 0, outcome.err
    assert not any(map(is_sharded, (plain / "checkpoints").iterdir()))
    assert_identical(everything(plain), {"weights": weights, "state": state})
    assert "runs of seqgen need no conversion" in command("convert", f"path={plain}", "output=none").err

    wanted = alone(lab, ("whole-epoch", dtype, keys), 2)
    freq = [key for key in keys if "update_freq" not in key and "sharding" not in key]
    for resumed in (name, "plain"):
        train_in(lab, (resumed, dtype, [*freq, "optimization.update_freq=[4]"]), ProcessGroup())
        compare(wanted, lab.root / resumed, 1e-9)


@pytest.mark.nightly
def test_any_number_of_processes_resumes_what_any_number_has_saved(lab: Lab) -> None:
    """Every example of the epoch is used exactly once, and the updates are those of one process."""

    def job(before: int, after: int, now: int, *more: str) -> tuple[str, str, list[str]]:
        keys = runs(lab, now, "fsdp", "float64", *SHORT)["transformer"][2]
        keys = [key for key in keys if "update_freq" not in key]
        return f"from-{before}-to-{after}", "float64", [*keys, f"optimization.update_freq=[{6 // now}]", *more]

    wanted = alone(lab, ("six", "float64", job(1, 1, 1)[2]), 3)
    examples = sorted(seen_examples(wanted))
    assert examples == list(range(len(examples)))
    assert len(examples) > 100
    for before in (1, 2, 3):
        jobs = [job(before, after, before, "optimization.max_update=2") for after in (1, 2, 3)]
        train_together(lab.root, before, jobs)
        for name, *_ in jobs:
            assert is_sharded(lab.root / name / "checkpoints" / "last") == (before > 1)
    for after in (1, 2, 3):
        train_together(lab.root, after, [job(before, after, after) for before in (1, 2, 3)])
    for before, after in product((1, 2, 3), (1, 2, 3)):
        run = lab.root / f"from-{before}-to-{after}"
        compare(wanted, run, 1e-9)
        assert sorted(seen_examples(run)) == examples, run.name


# -- one process that writes ---------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ProcessGroup()
    dist.destroy_process_group()


def saver(run: Path, group: ProcessGroup) -> ShardedSaver:
    return ShardedSaver(run, group, Checkpoints(run), timeout=60)


def save(saver: ShardedSaver, names: list[str], value: float) -> torch.Tensor:
    """Begin to save a checkpoint, all of whose numbers are the value; return its weight."""
    table = torch.full((3, 2), value)
    state = {"update": int(value), "optimizer": {"x": torch.full((4,), value), "step": torch.tensor(value)}}
    saver.save(names, {"w": table, "tied": table}, state, lambda: None)
    return table


def value_of(checkpoint: Path) -> float:
    """The value from which every file of a checkpoint was made."""
    weights, state = read_weights(checkpoint), read_training_state(checkpoint)
    values = {*weights["w"].flatten().tolist(), *weights["tied"].flatten().tolist(), state["update"]}
    values |= {*state["optimizer"]["x"].tolist(), state["optimizer"]["step"].item(), update_of(checkpoint)}
    assert len(values) == 1
    return float(values.pop())


def test_saving_goes_on_while_training_continues(
    tmp_path: Path, group: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that change after ``save`` do not change the checkpoint; the next ``save`` waits for it."""

    def slow(path: Path) -> str:
        time.sleep(0.3)
        return serialization.digest(path)

    monkeypatch.setattr(sharded_saving, "digest", slow)
    writer = saver(tmp_path, group)
    save(writer, ["last"], 1).add_(5)
    last = tmp_path / "checkpoints" / "last"
    assert not last.exists()
    save(writer, ["best", "last"], 2)
    assert value_of(last) == 1
    writer.wait()
    assert value_of(last) == value_of(tmp_path / "checkpoints" / "best") == 2
    writer.wait()


@pytest.mark.slow
@pytest.mark.parametrize("names", [["last"], ["update_2", "last"]])
def test_a_kill_at_any_operation_leaves_a_whole_checkpoint(
    names: list[str], tmp_path: Path, group: ProcessGroup
) -> None:
    for limit in range(1, 100):
        run = tmp_path / str(limit)
        writer = saver(run, group)
        save(writer, names, 1)
        writer.wait()
        with pytest.MonkeyPatch.context() as patch:
            done = operations(patch, limit, Killed, after=True)
            try:
                save(writer, names, 2)
                writer.wait()
                finished = True
            except Killed:
                finished = False
        assert value_of(resolve(run)) in (1, 2)
        newest = Checkpoints(run).resumable()[0]
        assert value_of(newest) in ((2,) if finished else (1, 2))
        assert {path.name for path in newest.parent.iterdir()} == set(names)
        if finished:
            break
    assert len(done) > 8


@pytest.mark.parametrize("param", ["", "bfloat16", "float16"])
@pytest.mark.parametrize("reduce", ["", "bfloat16", "float16"])
def test_each_dtype_of_fsdp_is_used_for_its_purpose(group: ProcessGroup, param: str, reduce: str) -> None:
    """Forward passes compute with ``param_dtype``, and gradients are exchanged in ``reduce_dtype``."""
    model: Any = nn.Linear(8, 8)
    computed: list[torch.dtype] = []

    def loss(batch: Any, model: Any) -> CriterionOut:
        out = model(batch)
        computed.append(out.dtype)
        return CriterionOut(out.float().square().sum(), 1)

    cfg = DistributedConfig(sharding="fsdp", param_dtype=param, reduce_dtype=reduce)
    module = _sharded(LossModule(model, loss), cfg, group, torch.device("cpu"))
    module(torch.randn(3, 8))[0].backward()
    assert computed == [getattr(torch, param or "float32")]
    gradient = whole(model.weight.grad)
    assert gradient.dtype == torch.float32
    exchanged = reduce or param
    rounded = [torch.equal(gradient, gradient.to(dtype).float()) for dtype in (torch.bfloat16, torch.float16)]
    assert any(rounded) == bool(exchanged)
    assert not exchanged or rounded[exchanged == "float16"]


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS])
def test_a_failure_to_write_is_a_sentence(tmp_path: Path, group: ProcessGroup, reason: int) -> None:
    writer = saver(tmp_path, group)
    save(writer, ["last"], 1)
    writer.wait()
    messages = []
    for limit in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            done = operations(patch, limit, lambda: OSError(reason, os.strerror(reason)), after=False)
            save(writer, ["last"], 1)
            try:
                writer.wait()
            except CheckpointError as error:
                messages.append(str(error))
            if len(done) < limit:
                break
        assert value_of(resolve(tmp_path)) == 1
    assert len(messages) >= 6
    for text in messages:
        assert "cannot write checkpoint" in text
        assert os.strerror(reason) in text
        assert "earlier checkpoints are intact" in text
        assert ("free some space" in text) == (reason in (errno.ENOSPC, errno.EDQUOT))


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path, group: ProcessGroup) -> Path:
    writer = saver(tmp_path, group)
    save(writer, ["last"], 1)
    writer.wait()
    return tmp_path / "checkpoints" / "last"


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
@pytest.mark.parametrize("file", [0, 1, 2])
def test_damaged_files_are_refused(checkpoint: Path, file: int, damage: str) -> None:
    files = sorted(path for path in checkpoint.iterdir() if path.name != "SHA256SUMS")
    assert len(files) == 3
    path = files[file]
    damage_file(path, damage)
    with pytest.raises(CheckpointError, match=r"damaged|missing|no model\.safetensors"):
        value_of(resolve(checkpoint))


def test_nothing_is_unpickled(checkpoint: Path, tmp_path: Path) -> None:
    """The metadata file that torch would write otherwise is a pickle; whoever adds one is ignored."""
    assert {path.suffix for path in checkpoint.iterdir()} == {".safetensors", ".json", ""}
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    (checkpoint / ".metadata").write_bytes(bomb)
    assert value_of(checkpoint) == 1
    for path in checkpoint.glob("*.safetensors"):
        path.write_bytes(bomb)
    serialization.write_checksums(checkpoint)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_weights(checkpoint)
    assert not (tmp_path / "exploded").exists()


def offsets(value: Any) -> str:
    return json.dumps({"weights/w": {"saved_offsets": value}})


@pytest.mark.parametrize(
    "metadata",
    ["", "[]", "{}", "[" * 100_000, "nonsense", *map(offsets, ([10**15, 0], [1], ["x", 0], None, [-1, 0], [0.5, 0]))],
)
def test_malicious_files_are_refused(checkpoint: Path, metadata: str) -> None:
    """With correct checksums; no memory is allocated for a tensor that the file says is large."""
    path = next(checkpoint.glob("*model-00001*"))
    contents = {"DCP_SHARDING_INFO": metadata} if metadata else None
    if metadata:
        safetensors.torch.save_file({"weights/w": torch.ones(3, 2)}, path, contents)
    else:
        safetensors.torch.save_file({"other": torch.ones(3, 2)}, path)
    serialization.write_checksums(checkpoint)
    with pytest.raises(CheckpointError):
        read_weights(checkpoint)
    with pytest.raises(CheckpointError):
        weight_shapes(checkpoint)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weights": []}', '{"weights": {"w": 3}}', "[" * 10_000])
def test_malicious_states_are_refused(checkpoint: Path, content: str) -> None:
    (checkpoint / "training_state.json").write_text(content)
    serialization.write_checksums(checkpoint)
    with pytest.raises(CheckpointError):
        read_weights(checkpoint)
