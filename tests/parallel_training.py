"""Training runs of several processes, which the tests start by ``torch.multiprocessing``."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import examples.lstm  # noqa: F401  # registers its models
from seqgen.task import Task
from seqgen.training.distributed import ProcessGroup, join, leave
from seqgen.training.train import StopSignals
from seqgen.training.training_loop import TrainingLoop
from tests.commands import SMALL_FCONV
from tests.training_runs import Lab, free_port

_T5 = ["model.d_model=16", "model.d_kv=8", "model.d_ff=32", "model.num_layers=2", "model.num_heads=2"]
MODELS = {
    "fconv": [*SMALL_FCONV],
    "transformer": [],
    "t5": ["model=t5_small", *_T5],
    "lstm": ["model=lstm_tiny", "model.embed_dim=16", "model.hidden_size=16"],
}
"""Keys of a small model of each architecture; those of the transformer are the defaults of ``Lab``."""


Job = tuple[str, str, Sequence[str]]
"""A run: its name, the data type of the weights, and configuration keys."""


def train_in(lab: Lab, job: Job, group: ProcessGroup) -> None:
    """Train a run as one rank."""
    name, dtype, overrides = job
    folder = lab.root / name
    cfg = lab.config(*overrides)
    if group.is_main:
        folder.mkdir(exist_ok=True)
        lab.task(cfg, folder)
    group.gather(None)
    task: Any = lab.task(cfg, folder)
    task.build_model = lambda model: Task.build_model(task, model).to(getattr(torch, dtype))
    TrainingLoop(cfg, task, folder, torch.device("cpu"), group, StopSignals()).run()


def _work(rank: int, world_size: int, port: int, root: Path, jobs: Sequence[Job]) -> None:
    torch.set_num_threads(1)
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    lab, group = Lab(root), ProcessGroup(rank, world_size)
    join(group, lab.config().distributed_training, torch.device("cpu"))
    for job in jobs:
        train_in(lab, job, group)
    leave()
    # DDP keeps the group's threads after the group is left (measured: four remain, whether or not the module was
    # collected); one that still releases its last tensors while Python finalizes can abort a process that has trained
    os._exit(0)


def train_together(root: Path, world_size: int, jobs: Sequence[Job], method: str = "spawn") -> None:
    """Train runs, one after the other, in several processes.

    Args:
        root: folder of the runs, with the tokenizers of a run of ``Lab`` in ``shared``.
        world_size: number of processes.
        jobs: the runs.
        method: how processes are started; "fork" is faster.
    """
    arguments = (world_size, free_port(), root, jobs)
    torch.multiprocessing.start_processes(_work, arguments, world_size, start_method=method)  # type: ignore[no-untyped-call]
