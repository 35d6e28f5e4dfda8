"""Training by DDP and FSDP: the same global batch gives the losses and weights of a single process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from seqgen.checkpoints.run_checkpoints import read_weights, resolve
from seqgen.config import DistributedConfig
from seqgen.training.criteria import CriterionOut
from seqgen.training.distributed import LossModule, ProcessGroup, _sharded, gather_whole
from tests.commands import SMALL_FCONV, corpus, training_arguments
from tests.parallel_training import MODELS, Job, train_in, train_together
from tests.training_runs import Lab, everything, flat, free_port, records

# a number of batches that neither 4 nor 6 divides
COMMON = ["dataset.max_tokens=120 optimization.max_epoch=2 optimization.lr=[0.01]"]
COMMON += ["common.log_interval=1 dataset.validate_decode=6"]
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
    assert tied(one) == tied(other)


def tied(run: Path) -> set[tuple[str, str]]:
    """The pairs of names that have the same tensor."""
    weights = read_weights(run / "checkpoints" / "last")
    return {(first, second) for first, second in combinations(weights, 2) if weights[first] is weights[second]}


def runs(world_size: int, sharding: str, dtype: str, *overrides: str) -> dict[str, Job]:
    """Runs of all architectures that have 2 * ``world_size`` batches in an update, in ``world_size`` processes."""
    together = [f"distributed_training.sharding={sharding}", "optimization.update_freq=[2]"]
    if dtype == "float32":
        # the gradient of a key bias is zero but for rounding, which Adam divides by its own size
        together.append("optimizer.adam_eps=0.001")
    return {
        name: (f"{name}-{sharding}-{dtype}-{world_size}", dtype, [*COMMON, *keys, *together, *overrides])
        for name, keys in MODELS.items()
    }


def alone(lab: Lab, job: Job, world_size: int, name: str = "") -> Path:
    """The same run in a single process."""
    name = name or f"alone-{job[0].split('-')[0]}-{job[1]}-{world_size}"
    if not (lab.root / name / "checkpoints" / "last").exists():
        keys = [key for key in job[2] if "sharding" not in key and "update_freq" not in key]
        train_in(lab, (name, job[1], [*keys, f"optimization.update_freq=[{2 * world_size}]"]), ProcessGroup())
    return lab.root / name


def test_a_small_run_is_that_of_one_process(lab: Lab) -> None:
    """Transformer, DDP and FSDP, float64, dropout, a last update of three batches; also if one process began it."""
    short = ["generation.match_source_len=true", "generation.beam=1", "generation.max_len_b=200"]  # unequal outputs
    short += ["dataset.max_tokens=400", "optimization.max_epoch=1"]
    jobs: list[Job] = []
    for sharding in TOLERANCE:
        keys = runs(2, sharding, "float64", *short)["transformer"][2]
        jobs += [(f"small-{sharding}", "float64", keys), (f"begun-{sharding}", "float64", keys)]
        alone(lab, (f"begun-{sharding}", "float64", [*keys, "optimization.max_update=1"]), 2, f"begun-{sharding}")
    wanted = alone(lab, ("small-x", "float64", keys), 2)
    train_together(lab.root, 2, jobs, "fork")
    for name, _, _ in jobs:
        compare(wanted, lab.root / name, TOLERANCE[name.split("-")[1]])


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_losses_and_weights_are_those_of_one_process(lab: Lab, sharding: str, world_size: int) -> None:
    """Batches accumulate, the last ones are uneven, and dropout is on; in float64 and float32."""
    jobs = {dtype: runs(world_size, sharding, dtype) for dtype in ("float64", "float32")}
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
        job = runs(2, sharding, "float64", *keys)["transformer"]
        jobs.append((f"{name}-{sharding}", "float64", [*job[2], "optimization.max_update=3"]))
    train_together(lab.root, 2, jobs)
    for name, _, keys in jobs:
        option = name.split("-")[0]
        wanted = alone(lab, (f"{option}-x", "float64", keys[:-1]), 2)
        resumed = [key for key in keys[:-1] if "update_freq" not in key]
        train_in(lab, (name, "float64", [*resumed, "optimization.update_freq=[4]"]), ProcessGroup())
        compare(wanted, lab.root / name, TOLERANCE[sharding])


@pytest.mark.nightly
def test_any_number_of_processes_resumes_what_any_number_has_saved(lab: Lab) -> None:
    """The updates are those of one process, of an epoch that is divided among one, two and three."""
    short = ["dataset.validate_decode=0", "optimization.max_epoch=1", "optimizer=nag", "optimizer.momentum=0.5"]
    short += ["optimization.lr=[0.5]", "optimization.ema_decay=0.9"]

    def job(before: int, after: int, now: int, *more: str) -> Job:
        keys = [key for key in runs(now, "fsdp", "float64", *short)["transformer"][2] if "update_freq" not in key]
        return f"from-{before}-to-{after}", "float64", [*keys, f"optimization.update_freq=[{6 // now}]", *more]

    wanted, numbers = alone(lab, ("six", "float64", job(1, 1, 1)[2]), 3), (1, 2, 3)
    for before in numbers:
        train_together(lab.root, before, [job(before, after, before, "optimization.max_update=2") for after in numbers])
    for after in numbers:
        train_together(lab.root, after, [job(before, after, after) for before in numbers])
        for before in numbers:
            compare(wanted, lab.root / f"from-{before}-to-{after}", 1e-9)


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


ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_torchrun_on_two_nodes_starts_the_run_of_one_process(tmp_path: Path) -> None:
    """Two processes write one run, with the weights of one process that accumulates two batches."""
    data = corpus(tmp_path / "data")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = [*SMALL_FCONV, "optimization.max_update=4"]
    together = [*training_arguments(data, tmp_path / "together"), *options]
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--nnodes", "2"]
    program += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    ranks = [[*program, f"--node-rank={rank}", "-m", "seqgen.cli.train", *together] for rank in range(2)]
    nodes = [subprocess.Popen(rank, cwd=ROOT, env=environment) for rank in ranks]
    assert [node.wait(120) for node in nodes] == [0, 0]
    alone = [*training_arguments(data, tmp_path / "alone"), *options, "optimization.update_freq=[2]"]
    subprocess.run([sys.executable, "-m", "seqgen.cli.train", *alone], check=True, cwd=ROOT, env=environment)
    one, two = (read_weights(resolve(tmp_path / name)) for name in ("alone", "together"))
    torch.testing.assert_close(two, one, atol=1e-4, rtol=1e-4)
