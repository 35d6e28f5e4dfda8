"""What training and preprocessing do with a run folder before they begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from seqgen.checkpoints.loading import CONFIG_FILE, read_yaml
from seqgen.checkpoints.run_checkpoints import FOLDER
from seqgen.compose import from_dict, to_dict
from seqgen.config import TrainConfig
from seqgen.files import write_atomically
from seqgen.registry import TASKS
from seqgen.task import Task
from seqgen.training.resume import check_resumable


def open_run(cfg: TrainConfig, folder: Path) -> Task:
    """Prepare a run folder, or check that the one there is can be continued, and make the task ready.

    Args:
        cfg: the whole configuration.
        folder: the run folder; its lock is held.

    Returns:
        The task.

    Raises:
        ConfigError: the run was begun with another configuration.
    """
    plain = _plain(cfg)
    path = folder / CONFIG_FILE
    if path.exists():
        before = _plain(from_dict(TrainConfig, read_yaml(path), str(path)))
        if any((folder / FOLDER).glob("*/")):
            check_resumable(before, plain)
        else:  # only the tokenizer and the encoded text have been made
            check_resumable({"task": before["task"]}, {"task": plain["task"]})
    task: Task = TASKS.of(cfg.task).component.setup_task(cfg.task, folder)  # type: ignore[attr-defined]
    write_atomically(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).encode())
    return task


def _plain(cfg: TrainConfig) -> dict[str, Any]:
    """The configuration as it is saved: without the folder, which can be moved."""
    plain = to_dict(cfg)
    del plain["run_dir"]
    return plain
