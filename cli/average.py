"""``seqgen-average``: average the weights of several checkpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqgen.checkpoints import averaging
from seqgen.checkpoints.loading import CONFIG_FILE, read_yaml, run_folder_of
from seqgen.checkpoints.resume import flatten
from seqgen.checkpoints.run_checkpoints import resolve, run_lock
from seqgen.checkpoints.run_checksums import tokenizer_digests, verify_run
from seqgen.cli.command import log, run
from seqgen.config import option
from seqgen.errors import CheckpointError, ConfigError

DESCRIPTION = """averages the weights of checkpoints: the newest five of a run with path=RUN last=5, or those that you
name with path=[A,B,...]. The average is written to checkpoints/average in the run folder (the first one, if there are
several); decode with path=RUN/checkpoints/average."""


@dataclass
class AverageConfig:
    """The configuration of ``seqgen-average``."""

    path: list[str] = option([], "run folder (with last), or the checkpoints to average")
    last: int = option(0, "number of newest checkpoints of the run to average", minimum=0)
    name: str = option("average", "name of the checkpoint to write")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(AverageConfig, average, DESCRIPTION, argv)


def average(cfg: AverageConfig) -> int:
    """Average checkpoints, and write the average as a checkpoint of the first run.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        ConfigError: a key is missing, or keys contradict each other.
        CheckpointError: the checkpoints do not exist, are damaged, or cannot be averaged.
    """
    if not cfg.path:
        raise ConfigError("path is missing: give path=RUN last=5, or path=[CHECKPOINT,CHECKPOINT,...]")
    if not re.fullmatch(r"[^./\\][^/\\]*", cfg.name) or re.fullmatch(r"last|best|(epoch|update)_\d+", cfg.name):
        raise ConfigError(
            f"name={cfg.name!r} cannot be the name of an average; choose a name that has no slash, does not begin "
            "with a dot, and is not last, best, epoch_N or update_N"
        )
    if cfg.last and len(cfg.path) > 1:
        raise ConfigError(f"last={cfg.last} needs one run folder, but path names {len(cfg.path)}")
    folder = Path(cfg.path[0]) if cfg.last else run_folder_of(resolve(cfg.path[0]))
    _check_runs([folder, *(run_folder_of(resolve(path)) for path in cfg.path[1:])])
    with run_lock(folder):  # locked before reading, because training replaces and deletes checkpoints
        checkpoints = averaging.last_checkpoints(folder, cfg.last) if cfg.last else [resolve(path) for path in cfg.path]
        written = averaging.write_average(folder, averaging.average(checkpoints), cfg.name)
    print(f"{written}: the average of {', '.join(path.name for path in checkpoints)}")
    return 0


def _check_runs(folders: Sequence[Path]) -> None:
    """Check that runs are undamaged and have the same tokenizer, and log how their models' keys differ.

    Raises:
        UserError: a run is damaged, or the tokenizers differ.
    """
    configs = {folder: dict(flatten(read_yaml(folder / CONFIG_FILE))) for folder in folders}
    for folder, config in configs.items():
        verify_run(folder, config)
        for key, value in configs[folders[0]].items():
            if key.startswith("model.") and config.get(key) != value:
                log(f"{folder}: {key} is {config.get(key)}; the average uses {value}")
        if tokenizer_digests(folder) != tokenizer_digests(folders[0]):
            raise CheckpointError(
                f"{folder}: its tokenizer differs from that of {folders[0]}, so their token ids mean different text; "
                "average only checkpoints of runs with the same tokenizer"
            )


if __name__ == "__main__":
    main()
