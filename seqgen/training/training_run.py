"""A training as observers see it: what they can read, and what they can ask for."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from seqgen.config import TrainConfig
from seqgen.core.errors import ConfigError, shown
from seqgen.core.model import EncoderDecoderModel
from seqgen.data.combined_datasets import PackedDataset
from seqgen.data.iterator import EpochIterator
from seqgen.data.pair_dataset import Dataset
from seqgen.system.error_messages import printable
from seqgen.task import Task
from seqgen.training.meter import Meter
from seqgen.training.trainer import Trainer
from seqgen.training.triggers import Triggers


@dataclass
class Requests:
    """What observers have asked for since the last update.

    Attributes:
        stop: the reason to stop; empty to continue.
        save: whether to save a checkpoint.
        validate: whether to validate.
    """

    stop: str = ""
    save: bool = False
    validate: bool = False

    def __add__(self, other: Requests) -> Requests:
        """The requests of both."""
        return Requests(self.stop or other.stop, self.save or other.save, self.validate or other.validate)


class TrainingRun:
    """A training in one process. With several processes, the observers of all must steer it in the same way.

    Args:
        cfg: the whole configuration.
        task: the task.
        folder: the run's folder.
        trainer: makes the updates.
        iterator: the batches.

    Attributes:
        epoch: the epoch of the last update, from 1.
        resumed: whether the run was continued from a checkpoint.
        total: number of updates until training ends; ``None`` if unknown.
        means: means of the values of the updates since the last record, by name.
        due: whether the last update completes a record, by ``common.log_interval``.
        best: the best score so far of ``checkpoint.best_checkpoint_metric``; ``None`` before the first validation.
        stale: number of validations since the best one.
    """

    def __init__(self, cfg: TrainConfig, task: Task, folder: Path, trainer: Trainer, iterator: EpochIterator):
        self.cfg, self.task, self.folder, self.trainer, self.iterator = cfg, task, folder, trainer, iterator
        self.group, self.triggers, self.meter = trainer.group, Triggers(cfg), Meter()
        self.epoch, self.resumed, self.due = 1, False, False
        self.total: int | None = None
        self.means: dict[str, float] = {}
        self.best: float | None = None
        self.stale = 0
        self.requests = Requests()
        self.saved = self.shown = time.monotonic()  # when the last checkpoint was saved, and a line was shown

    @property
    def model(self) -> EncoderDecoderModel:
        """The model that is trained."""
        return self.trainer.model

    @property
    def dataset(self) -> Dataset:
        """The training data; what is changed in its state counts from the next epoch on."""
        dataset = self.iterator.dataset
        return dataset.dataset if isinstance(dataset, PackedDataset) else dataset

    @property
    def update(self) -> int:
        """Number of updates made so far."""
        return self.trainer.update

    @property
    def lr(self) -> float:
        """The learning rate of the next update. If it is set, it no longer follows ``lr_scheduler``."""
        return self.trainer.lr_at(self.epoch)

    @lr.setter
    def lr(self, value: float) -> None:
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"run.lr = {shown(value)}: must be a finite number, at least 0")
        self.trainer.lr = value

    def freeze(self, *patterns: str) -> None:
        """Leave parameters as they are from the next update on.

        Args:
            patterns: names of parameters, such as ``encoder.*``; ``*`` matches any characters.

        Raises:
            ConfigError: a pattern matches no parameter that is trained.
        """
        self.trainer.frozen |= self.trainer.trained_names(patterns)

    def unfreeze(self, *patterns: str) -> None:
        """Train parameters again that ``freeze`` has frozen; see ``freeze``."""
        self.trainer.frozen -= self.trainer.trained_names(patterns)

    def stop(self, reason: str) -> None:
        """End training after this update and its validation, for good: it cannot be continued.

        Args:
            reason: what the log and the last line say.

        Raises:
            ConfigError: it is no text, or an empty one.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"run.stop({shown(reason)}): must be given the reason, as text")
        self.requests.stop = reason

    def save(self) -> None:
        """Save a checkpoint, ``last``, after this update."""
        self.requests.save = True

    def validate(self) -> None:
        """Validate after this update; from the method ``validation`` of an observer, after the next one."""
        self.requests.validate = True

    def message(self, text: str) -> None:
        """Show a line on standard error, in the main process."""
        self.shown = time.monotonic()
        if self.group.is_main and self.cfg.common.log_format != "none":
            print(printable(text), file=sys.stderr, flush=True)

    def seconds_to_save(self) -> float | None:
        """Seconds until a checkpoint is due by ``checkpoint.save_interval_minutes``; ``None`` if that is 0.

        The clocks of the ranks differ.
        """
        minutes = self.cfg.checkpoint.save_interval_minutes
        return self.saved + 60 * minutes - time.monotonic() if minutes else None

    @property
    def batches_in_epoch(self) -> int:
        """Number of batches in the whole current epoch, of the rank with the most batches."""
        batches: int = self.iterator.state_dict()["batches"]
        return math.ceil(batches / self.group.world_size)
