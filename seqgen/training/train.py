"""``train``: trains a model and writes the run folder, in one process or as one of those that ``torchrun`` started."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from types import FrameType

import torch

from seqgen.config import TrainConfig
from seqgen.system.processes import HANGUP, NotedSignals
from seqgen.task import Task
from seqgen.training.distributed import LostRanksError, group_from_environment, join, leave
from seqgen.training.training_loop import TrainingLoop

_NOTE = b"\nstopping after this update and saving; a second signal stops immediately\n"


class StopSignals(NotedSignals):
    """Notes signals, and says that training stops after the update.

    Args:
        second_ends: whether a second signal ends the process immediately. False for a process that may get one request
            twice: from the terminal, and from ``torchrun``, which forwards its signals.
    """

    def __init__(self, *, second_ends: bool = True) -> None:
        super().__init__()
        self.second_ends = second_ends

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            _leave_terminal()
        if self.received and not self.second_ends:
            return
        if self.second_ends and not self.received:
            with contextlib.suppress(OSError):
                os.write(2, _NOTE)
        super()._handle(number, frame)


def _leave_terminal() -> None:
    """Redirect output to the null device, since writing to a closed terminal raises an error."""
    with open(os.devnull, "w") as nowhere:
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):
                if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                    os.dup2(nowhere.fileno(), descriptor)


def train(cfg: TrainConfig, task: Task, folder: Path, device: torch.device | str = "cpu") -> int:
    """Train a model into a run folder, or resume the run in it.

    The caller holds the folder's lock and has written its ``config.yaml``. Under ``torchrun``, this process joins the
    process group.

    Args:
        cfg: the whole configuration.
        task: the task, set up in the folder.
        folder: the run's folder.
        device: where to compute.

    Returns:
        The exit code: 0 if training ended as configured; 130, 143 or 129 if SIGINT, SIGTERM or SIGHUP stopped it after
        saving, so that the same command resumes it.

    Raises:
        UserError: the configuration or the data cannot be used, a checkpoint is damaged, the disk is full, memory runs
            out, another process is lost, or the loss is not finite.
    """
    device = torch.device(device)
    group = group_from_environment()
    join(group, cfg.distributed_training, device)
    try:
        with StopSignals(second_ends=group.world_size == 1) as signals:  # torchrun sends a second signal
            try:
                return TrainingLoop(cfg, task, folder, device, group, signals).run()
            except LostRanksError:
                # torchrun ends all processes by a signal because of the error of one, which has been shown
                deadline = time.monotonic() + 5
                while not signals.received and time.monotonic() < deadline:
                    time.sleep(0.05)
                if signals.received:
                    return signals.exit_code
                raise
    finally:
        leave()
