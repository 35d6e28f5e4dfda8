"""Small training runs: the built-in example with a tiny model."""

import copy
import functools
import json
import re
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

import seqgen.models
import seqgen.tasks  # noqa: F401  # declare the built-in components
from seqgen.checkpoints.run_checkpoints import read_training_state, read_weights
from seqgen.cli.run_folder import write_config
from seqgen.config.compose import compose
from seqgen.extend import Batch, Task, TrainConfig
from seqgen.registry import TASKS
from seqgen.training.distributed import ProcessGroup
from seqgen.training.train import StopSignals, train
from seqgen.training.trainer import Trainer
from seqgen.training.training_loop import TrainingLoop

_SIZES = ("embed_dim=16", "layers=1", "ffn_embed_dim=16", "attention_heads=2")
_KEYS = (
    "task.train_size=120 task.vocab_size=60 model=transformer_tiny dataset.max_tokens=400 dataset.num_workers=0 "
    "dataset.max_tokens_valid=8000 lr_scheduler.warmup_updates=4 common.log_interval=2 common.log_format=none "
    "common.tensorboard=false generation.max_len_b=20"
)
TINY = [*_KEYS.split(), *(f"model.{side}_{size}" for side in ("encoder", "decoder") for size in _SIZES)]


@functools.cache  # Hydra takes longer than such a training run
def _compose(overrides: tuple[str, ...]) -> TrainConfig:
    return compose(TrainConfig, overrides)


class Lab:
    """Training runs on one dataset, whose text is encoded once.

    Args:
        root: folder for the runs.
    """

    def __init__(self, root: Path):
        self.root = root
        self.shared = root / "shared"

    def config(self, *overrides: str) -> TrainConfig:
        """The tiny configuration with some values changed; each text gives one key or several, with spaces between."""
        overrides = tuple(key for text in overrides for key in re.split(r" (?=[\w.]+=)", text))
        chosen = {override.partition("=")[0] for override in overrides}
        defaults = [item for item in TINY if "model" not in chosen or not item.startswith("model")]
        return copy.deepcopy(_compose((*defaults, f"task.cache_dir={self.root / 'cache'}", *overrides)))

    def task(self, cfg: TrainConfig, folder: Path) -> Task:
        """Set up the task in a run folder."""
        if not (folder / "tokenizer").exists() and (self.shared / "tokenizer").exists():
            shutil.copytree(self.shared / "tokenizer", folder / "tokenizer")
        task = TASKS.of(cfg.task).component.setup_task(cfg.task, folder)
        if not self.shared.exists():
            shutil.copytree(folder / "tokenizer", self.shared / "tokenizer")
        return task

    def trainer(self, *overrides: str, group: ProcessGroup | None = None) -> Trainer:
        """A trainer of new weights; a rank of several processes has no others with it."""
        cfg, folder = self.config(*overrides), self.root / "trainer"
        folder.mkdir(exist_ok=True)
        task = self.task(cfg, folder)
        torch.manual_seed(5)
        with mock.patch("seqgen.training.distributed.parallelize", lambda module, *_: module):
            return Trainer(cfg, task, task.build_model(cfg.model), torch.device("cpu"), group or ProcessGroup())

    def run(self, name: str, *overrides: str) -> TrainingLoop:
        """A run before its first update."""
        cfg, folder = self.config(*overrides), self.root / name
        folder.mkdir(exist_ok=True)
        return TrainingLoop(cfg, self.task(cfg, folder), folder, torch.device("cpu"), ProcessGroup(), StopSignals())

    def train(self, name: str, *overrides: str) -> Path:
        """Train a run, or resume it; return its folder."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        cfg = self.config(*overrides)
        task = self.task(cfg, folder)
        if not (folder / "config.yaml").exists():
            write_config(folder, cfg)
        self.exit_code = train(cfg, task, folder)
        return folder


def batch_of(trainer: Trainer, rows: Iterable[int] = range(4)) -> Batch:
    """Examples of the training data."""
    data = trainer.task.dataset("train")
    return trainer.task.collate([data.example(row, epoch=1, seed=1) for row in rows], trainer.model)


def free_port() -> int:
    """A free TCP port of this machine."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder for runs, which train on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Lab(tmp_path_factory.mktemp("runs"))
    torch.set_num_threads(threads)


def names(run: Path) -> set[str]:
    """The names of the checkpoints of a run."""
    return {path.name for path in (run / "checkpoints").iterdir()}


def records(run: Path, event: str = "train") -> list[dict[str, Any]]:
    """The records of one kind in the log, without values that depend on the clock."""
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    clock = ("time", "tokens_per_second", "seconds")
    return [{k: v for k, v in row.items() if k not in clock} for row in rows if row["event"] == event]


def everything(run: Path, name: str = "last") -> dict[str, Any]:
    """Weights and training state of a checkpoint, without values that depend on the clock."""
    checkpoint = run / "checkpoints" / name
    state = read_training_state(checkpoint)
    for key in ("busy", "seconds"):
        del state["meter"][key]
    del state["onednn"]
    state["means"].pop("tokens_per_second", 0)
    return {"weights": read_weights(checkpoint), "state": state}


def flat(value: Any) -> dict[str, Any]:
    """The leaves of nested values, by path."""
    return {keystr(path): leaf for path, leaf in tree_flatten_with_path(value)[0]}


def assert_identical(got: Any, wanted: Any) -> None:
    """Two states are bit-identical; the message names the paths that differ."""
    one, other = flat(got), flat(wanted)
    assert one.keys() == other.keys()
    same = lambda a, b: torch.equal(a, b) if isinstance(a, Tensor) else a == b  # noqa: E731
    assert not (different := [key for key in one if not same(one[key], other[key])]), different
