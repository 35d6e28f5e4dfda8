"""``seqgen-train``: train a model into a run folder, resume a run, or sweep over several configurations."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch

from seqgen.checkpoints.run_checkpoints import run_lock
from seqgen.cli.command import log, run, set_up_device
from seqgen.cli.run_folder import open_run
from seqgen.compose import chosen_components, compose
from seqgen.config import TrainConfig
from seqgen.errors import ConfigError, UserError
from seqgen.processes import end_with
from seqgen.sweep import expand_sweep
from seqgen.training.distributed import Peers, join, leave, peers_from_environment
from seqgen.training.train import train

PREPARATION = timedelta(days=1)
"""How long processes under ``torchrun`` wait for the first one to encode the text."""
DESCRIPTION = """trains a model; without arguments, the built-in example.
Training again into a run folder resumes the run. With -m, several values of a key (model=a,b common.seed=1,2) train
their product, a run folder each."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    arguments = list(sys.argv[1:] if argv is None else argv)

    def work(cfg: TrainConfig) -> int:
        overrides = [argument for argument in arguments if "=" in argument]
        return train_run(cfg, Path(cfg.run_dir or default_folder(overrides)))

    run(TrainConfig, work, DESCRIPTION, arguments, sweep=train_sweep)


def default_folder(overrides: Sequence[str]) -> Path:
    """Where a run goes that names no folder: ``runs/TASK-MODEL``."""
    chosen = chosen_components(TrainConfig, overrides)
    return Path("runs") / f"{chosen['task']}-{chosen['model']}"


def train_sweep(overrides: list[str]) -> int:
    """Train one run after the other, for each combination of the values given."""
    run_dir = [override.partition("=")[2] for override in overrides if override.startswith("run_dir=")]
    base = Path(run_dir[-1]) if run_dir else Path("runs") / "sweep"
    jobs = list(expand_sweep(TrainConfig, overrides))
    for number, (job, name) in enumerate(jobs, start=1):
        log(f"job {number} of {len(jobs)}: {name}")
        code = train_run(compose(TrainConfig, job), base / name)
        if code:
            return code
    return 0


def train_run(cfg: TrainConfig, folder: Path) -> int:
    """Train into a run folder, or continue the run in it.

    Args:
        cfg: the whole configuration.
        folder: the run folder.

    Returns:
        The exit code: 0 when training ended as configured, else that of the signal that stopped it.
    """
    device = set_up_device(cfg.common)
    peers = peers_from_environment()
    if peers.world_size > 1:
        return _train_with_peers(cfg, folder, device, peers)
    with run_lock(folder) as lock:
        return train(cfg, open_run(cfg, folder), folder, device, lock)


def _train_with_peers(cfg: TrainConfig, folder: Path, device: torch.device, peers: Peers) -> int:
    """Train together with the other processes that ``torchrun`` started; the first of them prepares the folder."""
    end_with(os.getppid())
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    asked = cfg.distributed_training.distributed_world_size
    if asked not in (1, peers.world_size):
        raise ConfigError(
            f"distributed_training.distributed_world_size={asked}, but torchrun has started {peers.world_size} "
            "processes; remove the key"
        )
    cfg.distributed_training.distributed_world_size = peers.world_size  # for those who resume the run
    join(peers, cfg.distributed_training, device)
    with ExitStack() as held:
        task, problem = None, ""
        if peers.is_main:
            try:
                held.enter_context(run_lock(folder))
                task = open_run(cfg, folder)
            except UserError as error:
                problem = str(error)
        problem = peers.gather(problem, PREPARATION)[0]  # the others wait here until the folder is ready
        if problem:
            leave()
            raise UserError(problem)
        return train(cfg, task or open_run(cfg, folder), folder, device)


if __name__ == "__main__":
    main()
