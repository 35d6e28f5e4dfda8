"""Training runs of several processes, which the tests start by ``torch.multiprocessing``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import examples.lstm  # noqa: F401  # registers its models
from seqgen.config import GenerationConfig, option
from seqgen.core.structures import Batch
from seqgen.registry import register_criterion
from seqgen.task import Task
from seqgen.training.criteria import CriterionOut, CrossEntropyConfig, CrossEntropyCriterion
from seqgen.training.distributed import ProcessGroup, join, leave
from seqgen.training.sequence_criterion import SequenceConfig, SequenceCriterion, decode_option
from seqgen.training.train import StopSignals
from seqgen.training.training_loop import TrainingRun
from tests.training_runs import Lab, free_port

_T5 = ["model.d_model=16", "model.d_kv=8", "model.d_ff=32", "model.num_layers=2", "model.num_heads=2"]
MODELS = {
    "fconv": [
        "model=fconv_tiny",
        "model.encoder_embed_dim=16",
        "model.decoder_embed_dim=16",
        "model.decoder_out_embed_dim=16",
        "model.encoder_layers=[(16, 3)] * 2",
        "model.decoder_layers=[(16, 3)] * 2",
    ],
    "transformer": [],
    "t5": ["model=t5_small", *_T5],
    "lstm": ["model=lstm_tiny", "model.embed_dim=16", "model.hidden_size=16"],
}
"""Keys of a small model of each architecture; those of the transformer are the defaults of ``Lab``."""


@dataclass
class ShortOfMemoryConfig(CrossEntropyConfig):
    """When memory runs out."""

    sentence: int = option(-1, "sentence with whose batch memory runs out")
    backward: bool = option(False, "in the backward pass")


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise torch.OutOfMemoryError("out of memory")


@register_criterion("short_of_memory", config=ShortOfMemoryConfig)
class ShortOfMemory(CrossEntropyCriterion):
    """A loss for which memory runs out on the batch with one sentence, in the forward or the backward pass."""

    def __init__(self, cfg: ShortOfMemoryConfig, task: Any):
        super().__init__(cfg, task)
        self.own = cfg

    def __call__(self, model: Any, batch: Batch) -> CriterionOut:
        out = super().__call__(model, batch)
        if model.training and len(batch.ids) > 1 and self.own.sentence in batch.ids.tolist():
            if not self.own.backward:
                raise torch.OutOfMemoryError("out of memory")
            out.loss = _NoGradient.apply(out.loss)
        return out


@dataclass
class BaselineConfig(SequenceConfig):
    """Samples of at most 12 tokens."""

    decode: GenerationConfig = decode_option(beam=3, sampling=True, max_len=12)


@register_criterion("with_baseline", config=BaselineConfig)
class WithBaseline(SequenceCriterion):
    """A policy gradient (Williams 1992) whose baseline is the running mean of the utility of all ranks."""

    baseline = 0.0

    def sequence_loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        samples = self.decode(model, batch)
        utilities = self.utilities(batch, samples)
        loss = -((utilities - self.baseline) * self.rescore(model, batch, samples).lprobs).mean(1).sum()
        return loss, {"utility": utilities.mean(1).sum()}

    def after_update(self, sums: Mapping[str, float]) -> None:
        self.baseline = 0.5 * self.baseline + 0.5 * sums["utility"] / sums["sample_size"]

    def state_dict(self) -> dict[str, Any]:
        return {"baseline": self.baseline}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.baseline = state["baseline"]


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

    def build_model(model: Any) -> Any:
        return Task.build_model(task, model).to(getattr(torch, dtype))

    task.build_model = build_model
    _ObservedRun(cfg, task, folder, torch.device("cpu"), group, StopSignals()).run()


class _ObservedRun(TrainingRun):
    """A run that notes the examples of its updates."""

    def _update(self, group: list[Batch | None], epoch: int) -> bool:
        made = super()._update(group, epoch)
        examples = [number for batch in group if batch is not None for number in batch.ids.tolist()]
        with open(self.folder / f"examples.{self.group.rank}", "a") as file:
            file.writelines(f"{number}\n" for number in examples)
        return made


def seen_examples(run: Path) -> list[int]:
    """The examples of all updates, of all ranks, in no particular order."""
    return [int(line) for path in run.glob("examples.*") for line in path.read_text().split()]


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
