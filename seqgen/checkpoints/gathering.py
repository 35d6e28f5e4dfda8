"""Plain copies of runs with sharded checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

from seqgen.checkpoints.run_checkpoints import (
    FOLDER,
    Checkpoints,
    is_checkpoint,
    read_training_state,
    read_weights,
    run_of,
)
from seqgen.checkpoints.sharded import STATE
from seqgen.system.files import CACHE, disk_errors, new_folder


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
