"""``train``: trains a model in one process or several, and writes the run folder."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from seqgen.checkpoints.run_lock import RunLock
from seqgen.config import TrainConfig
from seqgen.task import Task
from seqgen.training.distributed import LostRanksError, group_from_environment, join, leave
from seqgen.training.launch import GRACE, launch
from seqgen.training.signals import StopSignals
from seqgen.training.training_loop import TrainingRun


def train(
    cfg: TrainConfig, task: Task, folder: Path, device: torch.device | str = "cpu", lock: RunLock | None = None
) -> int:
    """Train a model into a run folder, or resume the run in it.

    The caller holds the folder's lock and has written its ``config.yaml``. With ``distributed_world_size`` above 1,
    that many processes are started on this machine; under ``torchrun`` or ``srun``, this process joins the group.

    Args:
        cfg: the whole configuration.
        task: the task, set up in the folder.
        folder: the run's folder.
        device: where to compute.
        lock: the folder's lock; if several processes are started, rank 0 gets it.

    Returns:
        The exit code: 0 if training ended as configured; 130, 143 or 129 if SIGINT, SIGTERM or SIGHUP stopped it after
        saving, so that the same command resumes it.

    Raises:
        UserError: the configuration or the data cannot be used, a checkpoint is damaged, the disk is full, memory runs
            out, a process dies, or the loss is not finite.
    """
    device = torch.device(device)
    group = group_from_environment()
    if cfg.distributed_training.distributed_world_size > 1 and group.world_size == 1:
        for split in (cfg.dataset.train_subset, cfg.dataset.valid_subset):
            task.dataset(split)  # encodes the text once, instead of once in each process
        return launch(cfg, folder, device, lock)
    join(group, cfg.distributed_training, device)
    try:
        with StopSignals(second_ends=group.world_size == 1) as signals:  # torchrun sends a second signal
            try:
                return TrainingRun(cfg, task, folder, device, group, signals).run()
            except LostRanksError:
                if _told_to_end(signals):  # torchrun ends all because of the error of one, which has been shown
                    return signals.exit_code
                raise
    finally:
        leave()


def _told_to_end(signals: StopSignals) -> bool:
    """Whether a signal asks this process to end, now or within ``GRACE`` seconds."""
    deadline = time.monotonic() + GRACE
    while not signals.received and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(signals.received)
