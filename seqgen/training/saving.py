"""Saves checkpoints of a training run, and finds the one to resume from."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from seqgen.checkpoints.run_checkpoints import Checkpoints, read_training_state, read_weights
from seqgen.config import TrainConfig
from seqgen.core.errors import CheckpointError
from seqgen.training.distributed import ProcessGroup
from seqgen.training.trainer import Trainer


@dataclass
class Resumable:
    """A checkpoint that was read.

    Attributes:
        path: its folder.
        weights: the weights to decode with, by name.
        state: the rest of the training state.
        damaged: why newer checkpoints could not be read.
    """

    path: Path
    weights: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


class Saving:
    """The checkpoints of a training run, which rank 0 writes. All ranks call each method together.

    Args:
        cfg: the whole configuration.
        folder: the run's folder.
        group: this process's rank in the process group.
        trainer: has the weights.
    """

    def __init__(self, cfg: TrainConfig, folder: Path, group: ProcessGroup, trainer: Trainer):
        self.cfg, self.group, self.trainer = cfg.checkpoint, group, trainer
        self.checkpoints = Checkpoints(folder) if group.is_main else None
        self.last = time.monotonic()

    def seconds_left(self) -> float | None:
        """Seconds until a checkpoint is due by ``checkpoint.save_interval_minutes``; ``None`` if that is 0.

        The clocks of the ranks differ.
        """
        minutes = self.cfg.save_interval_minutes
        return self.last + 60 * minutes - time.monotonic() if minutes else None

    def save(self, names: Sequence[str], state: Mapping[str, Any]) -> None:
        """Save checkpoints under these names and delete those that are too old.

        Args:
            names: the names of the checkpoints' folders.
            state: the training state without the weights; see ``Trainer.state_dict``.

        Raises:
            CheckpointError: a checkpoint cannot be written; earlier ones are intact.
        """
        weights = self.trainer.weights()
        if self.checkpoints is not None:
            self.checkpoints.save(names, weights, state)
            self.checkpoints.prune("epoch", self.cfg.keep_last_epochs)
            self.checkpoints.prune("update", self.cfg.keep_interval_updates)
        self.last = time.monotonic()

    def newest(self) -> Resumable | None:
        """Read the newest checkpoint that all ranks can read; ``None`` if there is no checkpoint.

        Raises:
            CheckpointError: there are some, but none can be read.
        """
        damaged: list[str] = []
        for path in self.group.gather(self.checkpoints.resumable() if self.checkpoints is not None else [])[0]:
            found, problem = Resumable(path, damaged=damaged), ""
            try:
                found.weights, found.state = read_weights(path), read_training_state(path)
            except CheckpointError as error:
                problem = str(error)
            problem = next((said for said in self.group.gather(problem) if said), "")
            if not problem:
                return found
            damaged.append(problem)
        if damaged:
            raise CheckpointError(f"no checkpoint of this run can be read: {damaged[0]}")
        return None
