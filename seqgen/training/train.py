"""Training a model into a run folder, in this process or in several."""

from __future__ import annotations

from pathlib import Path

import torch

from seqgen.checkpoints.run_lock import RunLock
from seqgen.config import TrainConfig
from seqgen.task import Task
from seqgen.training.distributed import join, leave, peers_from_environment
from seqgen.training.launch import launch
from seqgen.training.signals import StopSignals
from seqgen.training.training_loop import TrainingRun


def train(
    cfg: TrainConfig, task: Task, folder: Path, device: torch.device | str = "cpu", lock: RunLock | None = None
) -> int:
    """Train a model into a run folder, or continue what is in it.

    The caller holds the folder's lock and has written its ``config.yaml``. With ``distributed_world_size`` above 1,
    that many processes are started on this machine; under ``torchrun`` this process joins the others.

    Args:
        cfg: the whole configuration.
        task: the task, set up in the folder.
        folder: the run's folder.
        device: where to compute.
        lock: the folder's lock, given to the process that writes where several are started.

    Returns:
        The exit code: 0 when training has ended as configured, 130, 143 or 129 when SIGINT, SIGTERM or SIGHUP has ended
        it after saving; the run can then be continued.

    Raises:
        UserError: what was given cannot be used, a checkpoint is damaged, the disk is full, memory runs out, a process
            dies, or the loss is not finite.
    """
    device = torch.device(device)
    peers = peers_from_environment()
    if cfg.distributed_training.distributed_world_size > 1 and peers.world_size == 1:
        for split in (cfg.dataset.train_subset, cfg.dataset.valid_subset):
            task.dataset(split)  # encodes the text, so that the processes need not all do it
        return launch(cfg, folder, device, lock)
    join(peers, cfg.distributed_training, device)
    try:
        with StopSignals(second_ends=peers.world_size == 1) as signals:  # torchrun repeats what the terminal has sent
            return TrainingRun(cfg, task, folder, device, peers, signals).run()
    finally:
        leave()
