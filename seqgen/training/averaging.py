"""Averages the weights of several checkpoints, of one run or of several; the average often decodes better than each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from seqgen.checkpoints.run_checkpoints import (
    FOLDER,
    Checkpoints,
    numbered_checkpoints,
    read_weights,
    resolve,
    update_of,
)
from seqgen.checkpoints.run_config import CONFIG_FILE, flatten, read_yaml, run_folder_of, tokenizer_digests, verify_run
from seqgen.core.errors import CheckpointError
from seqgen.system.files import CACHE, disk_errors, new_folder, run_lock
from seqgen.training.run_log import LOG, SCORES
from seqgen.training.tensorboard import EVENTS


def average_runs(paths: Sequence[str], last: int, new_run: Path, note: Callable[[str], None]) -> list[Path]:
    """Average checkpoints, and write the average as a new run.

    Args:
        paths: the run folder, if ``last`` is set; else the checkpoints, or runs, of which the best checkpoint is read.
        last: number of newest checkpoints of the run; 0 for the checkpoints of ``paths``.
        new_run: the run folder to write, which must not exist yet.
        note: takes what the user should know about the runs.

    Returns:
        The checkpoints that were averaged.

    Raises:
        CheckpointError: the checkpoints do not exist, are damaged, or cannot be averaged.
    """
    folder = Path(paths[0]) if last else run_folder_of(resolve(paths[0]))
    _check_runs([folder, *(run_folder_of(resolve(path)) for path in paths[1:])], note)
    with run_lock(folder):  # locked before reading, because training replaces and deletes checkpoints
        checkpoints = last_checkpoints(folder, last) if last else [resolve(path) for path in paths]
        weights = average(checkpoints)
        with new_folder(new_run, exist_ok=False) as copy, disk_errors(new_run):
            shutil.copytree(folder, copy, ignore=partial(_left_out, folder), dirs_exist_ok=True)
            Checkpoints(copy).save(["best"], weights, None)
    return checkpoints


def _left_out(run: Path, place: str, names: list[str]) -> list[str]:
    """The files and folders of a run that its average does not have; a tokenizer's files may have any name."""
    left_out = (FOLDER, CACHE, EVENTS, LOG, SCORES)
    return [name for name in names if Path(place) == run and (name in left_out or name.startswith("."))]


def last_checkpoints(run: Path, count: int) -> list[Path]:
    """The newest checkpoints ``epoch_N`` and ``update_N`` of a run, at most one for each update.

    Args:
        run: the run folder.
        count: number of checkpoints.

    Returns:
        Their folders, oldest first.

    Raises:
        CheckpointError: the run has fewer.
    """
    folder = run / FOLDER
    by_update = {update_of(path): path for kind in ("epoch", "update") for path in numbered_checkpoints(folder, kind)}
    found = [by_update[update] for update in sorted(by_update)]
    if count < 1 or len(found) < count:
        raise CheckpointError(
            f"{run}: {count} checkpoints are to be averaged, but the run has only {len(found)}; train with "
            f"checkpoint.keep_last_epochs={count} or checkpoint.keep_interval_updates={count}"
        )
    return found[-count:]


def average(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """Average the weights of checkpoints in float64. Each checkpoint is read once.

    Args:
        checkpoints: folders of checkpoints of one architecture; see ``run_checkpoints.resolve``.

    Returns:
        Weights by name, with the dtypes of the first checkpoint. Tensors that are not floating-point are those of the
        first checkpoint.

    Raises:
        CheckpointError: a checkpoint cannot be read, or names or shapes differ.
    """
    first = read_weights(checkpoints[0])
    first_names: dict[int, str] = {}  # the first name of each tensor; tied weights are averaged once, under this name
    averaged_as = {name: first_names.setdefault(id(tensor), name) for name, tensor in first.items()}
    sums = {name: first[name].double() for name in first_names.values() if first[name].is_floating_point()}
    for path in checkpoints[1:]:
        other = read_weights(path)
        shapes, others = ({(name, one.shape) for name, one in weights.items()} for weights in (first, other))
        if different := {name for name, _ in shapes ^ others}:
            raise CheckpointError(
                f"{path}: its weights differ in names or shapes from those of {checkpoints[0]}: "
                + ", ".join(sorted(different)[:5])
            )
        for name, total in sums.items():
            total += other[name]
    means = {name: (total / len(checkpoints)).to(first[name].dtype) for name, total in sums.items()}
    return {name: means.get(averaged_as[name], tensor) for name, tensor in first.items()}


def _check_runs(folders: Sequence[Path], note: Callable[[str], None]) -> None:
    """Check that runs are undamaged and have the same architecture and tokenizer.

    Keys of the model that have an effect only in training may differ; they are noted.

    Raises:
        UserError: a run is damaged, or the models or tokenizers differ.
    """
    first = folders[0]
    configs = {folder: dict(flatten(read_yaml(folder / CONFIG_FILE))) for folder in folders}
    for folder, config in configs.items():
        verify_run(folder, config)
        for key in sorted({key for key in {**config, **configs[first]} if key.startswith("model.")}):
            here, there = config.get(key), configs[first].get(key)
            if here != there and "drop" not in key.rpartition(".")[2]:
                what = "its model" if key == "model._name" else key
                raise CheckpointError(
                    f"{folder}: {what} is {here}, but {there} in {first}; only models of one architecture can be "
                    "averaged"
                )
            if here != there:
                note(f"{folder}: {key} is {here}; the average uses {there}")
        if tokenizer_digests(folder) != tokenizer_digests(first):
            raise CheckpointError(
                f"{folder}: its tokenizer differs from that of {first}, so their token ids mean different text; "
                "average only checkpoints of runs with the same tokenizer"
            )
