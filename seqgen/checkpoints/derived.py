"""Checkpoints made from others: averages, which often decode better, and plain copies of sharded ones."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from seqgen.checkpoints.run_checkpoints import (
    FOLDER,
    Checkpoints,
    is_checkpoint,
    numbered,
    read_training_state,
    read_weights,
    run_of,
    update_of,
)
from seqgen.checkpoints.sharded import STATE
from seqgen.errors import CheckpointError
from seqgen.system.files import CACHE, disk_errors, new_folder


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
    by_update = {update_of(path): path for kind in ("epoch", "update") for path in numbered(folder, kind)}
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
        CheckpointError: no checkpoint is given, one cannot be read, or names or shapes differ.
    """
    if not checkpoints:
        raise CheckpointError("there is no checkpoint to average; give at least one")
    first = read_weights(checkpoints[0])
    first_names: dict[int, str] = {}  # the first name of each tensor; tied weights are averaged once, under this name
    averaged_as = {name: first_names.setdefault(id(tensor), name) for name, tensor in first.items()}
    sums = {name: first[name].double() for name in first_names.values() if first[name].is_floating_point()}
    for path in checkpoints[1:]:
        other = read_weights(path)
        different = {name for name in first.keys() | other.keys() if _shape(first, name) != _shape(other, name)}
        if different:
            raise CheckpointError(
                f"{path}: its weights differ in names or shapes from those of {checkpoints[0]}: "
                + ", ".join(sorted(different)[:5])
            )
        for name, total in sums.items():
            total += other[name]
    means = {name: (total / len(checkpoints)).to(first[name].dtype) for name, total in sums.items()}
    return {name: means.get(averaged_as[name], tensor) for name, tensor in first.items()}


def write_average(run: Path, weights: dict[str, Tensor], name: str = "average") -> Path:
    """Write averaged weights as a checkpoint, for decoding but not for resuming training.

    Args:
        run: the run folder; the caller holds its lock.
        weights: the result of ``average``.
        name: the checkpoint's name.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: it cannot be written.
    """
    checkpoints = Checkpoints(run)
    checkpoints.save([name], weights, None)
    return checkpoints.folder / name


def _shape(weights: dict[str, Tensor], name: str) -> torch.Size | None:
    return weights[name].shape if name in weights else None


def checkpoints_of(path: Path) -> list[Path]:
    """The checkpoints that a path refers to: all of a run folder, or the checkpoint that it is."""
    places = sorted((path / FOLDER).iterdir()) if (path / FOLDER).is_dir() else [path]
    return [place for place in places if not place.name.startswith(".") and is_checkpoint(place)]


def gather_run(path: Path, folder: Path) -> list[str]:
    """Write a copy of a run whose checkpoints are plain, atomically.

    Args:
        path: the run folder, or the folder of one of its checkpoints, for a copy that has only this one.
        folder: the folder to write, which must not exist yet.

    Returns:
        The names of the checkpoints.

    Raises:
        CheckpointError: a checkpoint cannot be read.
        UserError: the folder cannot be written.
    """
    checkpoints = checkpoints_of(path)
    run = run_of(checkpoints[0])
    with new_folder(folder) as temporary, disk_errors(folder):
        for item in run.iterdir():
            if item.name in (FOLDER, CACHE) or item.name.startswith("."):
                continue
            if item.is_dir():
                shutil.copytree(item, temporary / item.name)
            else:
                shutil.copy2(item, temporary / item.name)
        written = Checkpoints(temporary)
        for checkpoint in checkpoints:
            state = read_training_state(checkpoint) if (checkpoint / STATE).is_file() else None
            written.save([checkpoint.name], read_weights(checkpoint), state)
    return [checkpoint.name for checkpoint in checkpoints]
