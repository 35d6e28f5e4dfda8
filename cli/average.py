"""``seqgen-average``: average the weights of several checkpoints of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqgen.checkpoints import averaging
from seqgen.checkpoints.loading import run_folder_of
from seqgen.checkpoints.run_checkpoints import resolve, run_lock
from seqgen.cli.command import run
from seqgen.config import option
from seqgen.errors import ConfigError

DESCRIPTION = """averages the weights of checkpoints: path=RUN last=5 for the newest of a run, or path=[A,B,...].
The average goes into the run's checkpoints/average, and is decoded with by path=RUN/checkpoints/average."""


@dataclass
class AverageConfig:
    """Everything that ``seqgen-average`` is told."""

    path: list[str] = option([], "run folder, or the checkpoints to average")
    last: int = option(0, "how many of the newest checkpoints of the run to average", minimum=0)
    name: str = option("average", "name of the checkpoint that is written")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(AverageConfig, average, DESCRIPTION, argv)


def average(cfg: AverageConfig) -> int:
    """Average what the configuration names.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.
    """
    if not cfg.path:
        raise ConfigError("path is missing: give path=RUN last=5, or path=[CHECKPOINT,CHECKPOINT,...]")
    if cfg.name in ("last", "best") or "/" in cfg.name or cfg.name.startswith("."):
        raise ConfigError(f"name={cfg.name!r} is not a name for an average; take another")
    if cfg.last and len(cfg.path) > 1:
        raise ConfigError(f"last={cfg.last} is for one run folder, but path names {len(cfg.path)}")
    checkpoints = (
        averaging.last_checkpoints(Path(cfg.path[0]), cfg.last)
        if cfg.last
        else [resolve(Path(path)) for path in cfg.path]
    )
    folder = run_folder_of(checkpoints[0])
    with run_lock(folder):
        written = averaging.write_average(folder, averaging.average(checkpoints), cfg.name)
    print(f"{written}: the average of {', '.join(path.name for path in checkpoints)}")
    return 0


if __name__ == "__main__":
    main()
