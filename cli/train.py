"""``seqgen-train``: train a model into a run folder, resume a run, or sweep over several configurations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from seqgen.cli.command import log, run, set_up_device
from seqgen.compose import chosen_components, compose, expand_sweep, from_dict, to_dict
from seqgen.config import TrainConfig
from seqgen.loading import CONFIG_FILE, read_yaml
from seqgen.registry import TASKS
from seqgen.training.checkpoints import run_lock
from seqgen.training.files import write_atomically
from seqgen.training.resume import check_resumable
from seqgen.training.training_loop import train

DESCRIPTION = """trains a model; without arguments, the built-in example.
Training again into a run folder resumes the run. With -m, several values of a key (model=a,b common.seed=1,2) train
their product, a run folder each."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    import sys

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
    """Train into a run folder, or go on with what is in it.

    Args:
        cfg: the whole configuration.
        folder: the run folder.

    Returns:
        The exit code: 0 when training ended as configured, else that of the signal that stopped it.
    """
    device = set_up_device(cfg.common)
    with run_lock(folder):
        plain = to_dict(cfg)
        del plain["run_dir"]  # the folder can be moved
        path = folder / CONFIG_FILE
        if path.exists():
            before = to_dict(from_dict(TrainConfig, read_yaml(path), str(path)))
            del before["run_dir"]
            check_resumable(before, plain)
        write_atomically(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).encode())
        task = TASKS.of(cfg.task).component.setup_task(cfg.task, folder)  # type: ignore[attr-defined]
        return train(cfg, task, folder, device)


if __name__ == "__main__":
    main()
