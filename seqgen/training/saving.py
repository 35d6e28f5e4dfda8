"""Saves checkpoints of a training run, and finds the one to resume from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from seqgen.checkpoints.run_checkpoints import Checkpoints, read_training_state, read_weights
from seqgen.checkpoints.sharded import WEIGHTS, is_sharded, read_shards
from seqgen.config import TrainConfig
from seqgen.errors import CheckpointError, UserError
from seqgen.training.distributed import LostRanksError, ProcessGroup
from seqgen.training.sharded_saving import ShardedSaver
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
    """The checkpoints of a training run: sharded ones if the weights are sharded. All ranks call each method together.

    Args:
        cfg: the whole configuration.
        folder: the run's folder.
        group: this process's rank in the process group.
        trainer: has the weights.
    """

    def __init__(self, cfg: TrainConfig, folder: Path, group: ProcessGroup, trainer: Trainer):
        self.cfg, self.group, self.trainer = cfg.checkpoint, group, trainer
        self.checkpoints = Checkpoints(folder) if group.is_main else None
        self.sharded: ShardedSaver | None = None
        if trainer.sharded:
            self.sharded = ShardedSaver(folder, group, self.checkpoints, cfg.distributed_training.timeout)

    def save(self, names: Sequence[str], state: Callable[[bool], dict[str, Any]]) -> None:
        """Save checkpoints under these names and delete those that are too old; sharded ones in the background.

        Args:
            names: the names of the checkpoints' folders.
            state: returns the training state without the weights; see ``Trainer.state_dict`` for the argument.

        Raises:
            CheckpointError: a checkpoint cannot be written; earlier ones are intact.
        """
        weights, rest = self.trainer.weights(self.trainer.sharded), state(self.trainer.sharded)
        if self.sharded is not None:
            self.sharded.save(names, weights, rest, self._prune)
        elif self.checkpoints is not None:
            self.checkpoints.save(names, weights, rest)
            self._prune()

    def _prune(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.prune("epoch", self.cfg.keep_last_epochs)
            self.checkpoints.prune("update", self.cfg.keep_interval_updates)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Finish the checkpoint that is being written at the end of a block, also after an error of this rank."""
        try:
            yield
        except LostRanksError:
            raise
        except UserError:
            with suppress(UserError):
                self._wait()
            raise
        self._wait()

    def _wait(self) -> None:
        if self.sharded is not None:
            self.sharded.wait()

    def newest(self) -> Resumable | None:
        """Read the newest checkpoint that all ranks can read; ``None`` if there is no checkpoint.

        Raises:
            CheckpointError: there are some, but none can be read.
        """
        damaged: list[str] = []
        for path in self.group.gather(self.checkpoints.resumable() if self.checkpoints is not None else [])[0]:
            found, problem = Resumable(path, damaged=damaged), ""
            try:
                self._read(found)
            except CheckpointError as error:
                problem = str(error)
            problem = next((said for said in self.group.gather(problem) if said), "")
            if not problem:
                return found
            damaged.append(problem)
        if damaged:
            raise CheckpointError(f"no checkpoint of this run can be read: {damaged[0]}")
        return None

    def _read(self, found: Resumable) -> None:
        if self.trainer.sharded and is_sharded(found.path):
            found.state = read_shards(found.path, self.trainer.part)
            found.weights = found.state.pop(WEIGHTS)
        else:
            found.weights, found.state = read_weights(found.path), read_training_state(found.path)
