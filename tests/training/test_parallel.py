"""Training by DDP and FSDP: the same global batch gives the losses and weights of a single process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from seqgen.checkpoints.run_checkpoints import read_weights
from seqgen.config import DistributedConfig
from seqgen.core.errors import ConfigError, ResourceError
from seqgen.training.criteria import CriterionOut
from seqgen.training.distributed import LossModule, ProcessGroup, _sharded, gather_whole
from seqgen.training.trainer import Trainer
from tests.parallel_training import MODELS, Job, seen_examples, train_in, train_together
from tests.training_runs import Lab, everything, flat, lab, records

__all__ = ["lab"]

COMMON = [
    "dataset.max_tokens=120",  # a number of batches that neither 4 nor 6 divides
    "optimization.max_epoch=2",
    "optimization.lr=[0.01]",
    "common.log_interval=1",
    "dataset.validate_decode=6",
]
TOLERANCE = {"ddp": 1e-10, "fsdp": 1e-9}


def compare(one: Path, other: Path, tolerance: float) -> None:
    """The losses of all updates, the scores and the training state of two runs agree."""
    for event in ("train", "valid"):
        left, right = records(one, event), {row["update"]: row for row in records(other, event)}
        assert left
        for a, b in ((row, right[row["update"]]) for row in left):
            numbers = {name for name in a if isinstance(a[name], float)}
            assert numbers
            for name in numbers:
                assert a[name] == pytest.approx(b[name], rel=tolerance, abs=tolerance), (name, a, b)
    left, right = flat(everything(one)), flat(everything(other))
    assert {key for key in left if "weights" in key} == {key for key in right if "weights" in key}
    for key, value in left.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(right[key], value, rtol=tolerance, atol=tolerance, msg=key)


def runs(lab: Lab, world_size: int, sharding: str, dtype: str, *overrides: str) -> dict[str, Job]:
    """Runs of all architectures that have 2 * ``world_size`` batches in an update, in ``world_size`` processes."""
    together = [f"distributed_training.sharding={sharding}", "optimization.update_freq=[2]"]
    if dtype == "float32":
        # the gradient of a key bias is zero but for rounding, which Adam divides by its own size
        together.append("optimizer.adam_eps=0.001")
    return {
        name: (f"{name}-{sharding}-{dtype}-{world_size}", dtype, [*COMMON, *keys, *together, *overrides])
        for name, keys in MODELS.items()
    }


def alone(lab: Lab, job: Job, world_size: int) -> Path:
    """The same run in a single process."""
    name = f"alone-{job[0].split('-')[0]}-{job[1]}-{world_size}"
    if not (lab.root / name / "checkpoints" / "last").exists():
        keys = [key for key in job[2] if "sharding" not in key and "update_freq" not in key]
        train_in(lab, (name, job[1], [*keys, f"optimization.update_freq=[{2 * world_size}]"]), ProcessGroup())
    return lab.root / name


def test_a_small_run_is_that_of_one_process(lab: Lab) -> None:
    """Transformer, DDP and FSDP, float64, dropout; the last update of two processes has three batches."""
    short = ["dataset.validate_decode=0", "dataset.max_tokens=400", "optimization.max_epoch=1"]
    keys = [runs(lab, 2, sharding, "float64", *short)["transformer"][2] for sharding in TOLERANCE]
    jobs = [(f"small-{sharding}", "float64", own) for sharding, own in zip(TOLERANCE, keys, strict=True)]
    wanted = alone(lab, ("small-x", "float64", jobs[0][2]), 2)
    train_together(lab.root, 2, jobs, "fork")
    for name, _, keys in jobs:
        compare(wanted, lab.root / name, TOLERANCE["ddp" if "sharding=ddp" in " ".join(keys) else "fsdp"])


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_losses_and_weights_are_those_of_one_process(lab: Lab, sharding: str, world_size: int) -> None:
    """Batches accumulate, the last ones are uneven, and dropout is on; in float64 and float32."""
    jobs = {dtype: runs(lab, world_size, sharding, dtype) for dtype in ("float64", "float32")}
    wanted = {job[0]: alone(lab, job, world_size) for by_name in jobs.values() for job in by_name.values()}
    train_together(lab.root, world_size, [job for by_name in jobs.values() for job in by_name.values()])
    for dtype, by_name in jobs.items():
        for job in by_name.values():
            compare(wanted[job[0]], lab.root / job[0], TOLERANCE[sharding] if dtype == "float64" else 1e-5)


OPTIONS = {
    "ema": ["optimization.ema_decay=0.9"],
    "recompute": ["optimization.checkpoint_activations=true"],
    "nag": ["optimizer=nag", "optimizer.momentum=0.5"],
    # by default it divides also the smallest gradient by its own size, such as that of a key bias, which is rounding
    "adafactor": ["optimizer=adafactor", "optimizer.adafactor_eps=[1e-6,0.001]"],
    "frozen": ["optimization.freeze=[encoder.*]"],
    "tensorboard": ["common.tensorboard=true"],
}
"""Runs of the transformer."""


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_options_work_as_in_one_process(lab: Lab, sharding: str) -> None:
    """Two processes train the first epoch; another number of processes resumes the run and trains the second one."""
    jobs: list[Job] = []
    for name, keys in OPTIONS.items():
        job = runs(lab, 2, sharding, "float64", *keys)["transformer"]
        jobs.append((f"{name}-{sharding}", "float64", [*job[2], "optimization.max_update=3"]))
    train_together(lab.root, 2, jobs)
    for name, _, keys in jobs:
        option = name.split("-")[0]
        wanted = alone(lab, (f"{option}-x", "float64", keys[:-1]), 2)
        resumed = [key for key in keys[:-1] if "update_freq" not in key]
        train_in(lab, (name, "float64", [*resumed, "optimization.update_freq=[4]"]), ProcessGroup())
        compare(wanted, lab.root / name, TOLERANCE[sharding])


@pytest.mark.parametrize("backward", ["false", "true"])
def test_an_update_without_memory_is_skipped(lab: Lab, backward: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the key, training stops, and the message names the key."""
    keys = ["criterion=short_of_memory", "criterion.sentence=5", "common.log_format=lines", "optimization.max_update=6"]
    keys.append(f"criterion.backward={backward}")
    with pytest.raises(ResourceError, match=r"memory ran out in update \d+; optimization.out_of_memory=skip skips"):
        lab.train(f"stopped-{backward}", *keys)
    lab.train(f"stopped-{backward}", *keys, "optimization.out_of_memory=skip")
    said = capsys.readouterr().err
    assert re.search(r"update \d+ was skipped: memory ran out on a batch with the sentences .*\b5\b.*numbered", said)


def test_several_processes_do_not_skip(lab: Lab) -> None:
    cfg = lab.config("optimization.out_of_memory=skip")
    task = lab.task(cfg, lab.root / "several")
    with pytest.raises(ConfigError, match=r"optimization\.out_of_memory=skip is for one process"):
        Trainer(cfg, task, task.build_model(cfg.model), torch.device("cpu"), ProcessGroup(0, 2))


def test_what_has_no_effect_in_one_process_is_said(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["common.log_format=lines", "optimization.max_update=1"]
    lab.train("one", *keys, "distributed_training.sharding=fsdp", "distributed_training.reduce_dtype=bfloat16")
    said = capsys.readouterr().err
    assert "sharding=fsdp and distributed_training.reduce_dtype=bfloat16 without effect: there is one process" in said
    lab.train("one-as-usual", *keys)
    assert "without effect" not in capsys.readouterr().err


SHORT = ["dataset.validate_decode=0", "dataset.max_tokens=120", "optimization.max_epoch=1", "optimizer.momentum=0.5"]
SHORT += ["optimizer=nag", "optimization.lr=[0.5]", "optimization.ema_decay=0.9"]


def tied(weights: dict[str, torch.Tensor]) -> set[tuple[str, str]]:
    """The pairs of names that have the same tensor."""
    return {(one, two) for one, two in combinations(weights, 2) if weights[one] is weights[two]}


@pytest.mark.slow
def test_what_two_processes_with_shards_save_one_resumes(lab: Lab) -> None:
    _, dtype, keys = runs(lab, 2, "fsdp", "float64", *SHORT)["transformer"]
    name = "shards"
    train_together(lab.root, 2, [(name, dtype, [*keys, "optimization.max_update=2"])], "fork")
    before = alone(lab, ("two-updates", dtype, [*keys, "optimization.max_update=2"]), 2)
    compare(before, lab.root / name, 1e-9)
    of_two, of_one = (read_weights(run / "checkpoints" / "last") for run in (lab.root / name, before))
    assert tied(of_two) == tied(of_one) != set()
    wanted = alone(lab, ("whole-epoch", dtype, keys), 2)
    freq = [key for key in keys if "update_freq" not in key and "sharding" not in key]
    train_in(lab, (name, dtype, [*freq, "optimization.update_freq=[4]"]), ProcessGroup())
    compare(wanted, lab.root / name, 1e-9)


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
        train_together(
            lab.root, before, [job(before, after, before, "optimization.max_update=2") for after in (1, 2, 3)]
        )
    for after in (1, 2, 3):
        train_together(lab.root, after, [job(before, after, after) for before in (1, 2, 3)])
    for before, after in product((1, 2, 3), (1, 2, 3)):
        run = lab.root / f"from-{before}-to-{after}"
        compare(wanted, run, 1e-9)
        assert sorted(seen_examples(run)) == examples, run.name


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ProcessGroup()
    dist.destroy_process_group()


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
    gradient = gather_whole(model.weight.grad)
    assert gradient.dtype == torch.float32
    exchanged = reduce or param
    rounded = [torch.equal(gradient, gradient.to(dtype).float()) for dtype in (torch.bfloat16, torch.float16)]
    assert any(rounded) == bool(exchanged)
    assert not exchanged or rounded[exchanged == "float16"]
