"""``seqgen-average``: average the weights of several checkpoints, of one run or of several."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from seqgen.checkpoints import derived as averaging
from seqgen.checkpoints.hub import PREFIX
from seqgen.checkpoints.loading import CONFIG_FILE, read_yaml, run_folder_of
from seqgen.checkpoints.resume import flatten
from seqgen.checkpoints.run_checkpoints import FOLDER as CHECKPOINTS, resolve, run_lock
from seqgen.checkpoints.run_checksums import tokenizer_digests, verify_run
from seqgen.cli.command import log, run
from seqgen.config import option
from seqgen.errors import CheckpointError, ConfigError
from seqgen.system.files import CACHE, new_folder
from seqgen.training.run_log import EVENTS, LOG
from seqgen.training.run_scores import SCORES

DESCRIPTION = """averages the weights of checkpoints: the newest five of a run with path=RUN last=5, or those that you
name with path=[A,B,...], which may be runs of one architecture. The average is written to checkpoints/average in the
run folder (the first one, if there are several); decode with path=RUN/checkpoints/average. With run_dir=NEW it is
written as a run of its own; decode with path=NEW."""

OF_TRAINING = (CACHE, CHECKPOINTS, EVENTS, LOG, SCORES)
"""Content of a run folder that belongs to its training, and is not copied into the run of an average."""


@dataclass
class AverageConfig:
    """The configuration of ``seqgen-average``."""

    path: list[str] = option([], "run folder (with last), or the checkpoints or runs to average", names="output")
    last: int = option(0, "number of newest checkpoints of the run to average", minimum=0)
    name: str = option("average", "name of the checkpoint to write into the first run", names="output")
    run_dir: str = option("", "new run folder for the average; empty to write it into the first run", names="output")


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
    if remote := next((path for path in cfg.path if path.startswith(PREFIX)), ""):
        raise ConfigError(
            f"path={remote} is a model on the Hugging Face Hub, and only checkpoints of runs are averaged; make it a "
            f"run with seqgen-convert path={remote} run_dir=RUN"
        )
    if cfg.last and len(cfg.path) > 1:
        raise ConfigError(f"last={cfg.last} needs one run folder, but path names {len(cfg.path)}")
    if cfg.run_dir and Path(cfg.run_dir).exists():
        raise ConfigError(f"run_dir={cfg.run_dir} already exists; give the name of a new folder")
    if cfg.run_dir and cfg.name != AverageConfig.name:
        raise ConfigError(f"name={cfg.name} has no effect with run_dir={cfg.run_dir}; remove one of the two keys")
    folder = Path(cfg.path[0]) if cfg.last else run_folder_of(resolve(cfg.path[0]))
    _check_runs([folder, *(run_folder_of(resolve(path)) for path in cfg.path[1:])])
    with run_lock(folder):  # locked before reading, because training replaces and deletes checkpoints
        checkpoints = averaging.last_checkpoints(folder, cfg.last) if cfg.last else [resolve(path) for path in cfg.path]
        weights = averaging.average(checkpoints)
        if cfg.run_dir:
            written = _write_run(folder, Path(cfg.run_dir), weights)
        else:
            written = averaging.write_average(folder, weights, cfg.name)
    names = [str(path) if len(cfg.path) > 1 else path.name for path in checkpoints]
    print(f"{written}: the average of {', '.join(names)}")
    return 0


def _write_run(first: Path, folder: Path, weights: dict[str, Tensor]) -> Path:
    """Write averaged weights as the best checkpoint of a new run, which otherwise equals the first run.

    Args:
        first: the first run.
        folder: the new run folder.
        weights: the average.

    Returns:
        The new run folder.

    Raises:
        UserError: it cannot be written.
    """
    with new_folder(folder) as temporary:
        for path in sorted(first.iterdir()):
            if path.name not in OF_TRAINING and not path.name.startswith("."):
                copy = shutil.copytree if path.is_dir() else shutil.copy2
                copy(path, temporary / path.name)
        averaging.write_average(temporary, weights, "best")
    return folder


def _check_runs(folders: Sequence[Path]) -> None:
    """Check that runs are undamaged and have the same architecture and tokenizer.

    Keys of the model that have an effect only in training may differ; they are logged.

    Raises:
        UserError: a run is damaged, or the models or tokenizers differ.
    """
    first = folders[0]
    configs = {folder: dict(flatten(read_yaml(folder / CONFIG_FILE))) for folder in folders}
    for folder, config in configs.items():
        verify_run(folder, config)
        for key in sorted({key for key in {**config, **configs[first]} if key.startswith("model.")}):
            here, there = config.get(key), configs[first].get(key)
            if here != there and not _only_in_training(key):
                what = "its model" if key == "model._name" else key
                raise CheckpointError(
                    f"{folder}: {what} is {here}, but {there} in {first}; only models of one architecture can be "
                    "averaged"
                )
            if here != there:
                log(f"{folder}: {key} is {here}; the average uses {there}")
        if tokenizer_digests(folder) != tokenizer_digests(first):
            raise CheckpointError(
                f"{folder}: its tokenizer differs from that of {first}, so their token ids mean different text; "
                "average only checkpoints of runs with the same tokenizer"
            )


def _only_in_training(key: str) -> bool:
    """Whether a key of the model has no effect on decoding: rates of dropout and layer drop, saving of memory."""
    name = key.rpartition(".")[2]
    return "drop" in name or name == "checkpoint_activations"


if __name__ == "__main__":
    main()
