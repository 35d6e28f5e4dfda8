"""Preparation of a run folder before training, with a record of the command and of where each key comes from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import yaml

from seqgen.checkpoints.run_checkpoints import FOLDER
from seqgen.checkpoints.run_config import CONFIG_FILE, read_run_config
from seqgen.checkpoints.run_record import (
    check_resumable,
    flatten,
    verify_run,
    verify_task,
    verify_tokenizers,
    write_run_checksums,
)
from seqgen.cli.command import Arguments
from seqgen.config import TrainConfig
from seqgen.config.compose import chosen_components
from seqgen.config.user_files import recorded_files
from seqgen.config.values import to_dict
from seqgen.data.text import digest
from seqgen.lab.compare.provenance import origins_of, read_provenance, recorded_origin, with_origins, write_provenance
from seqgen.registry import TASKS
from seqgen.system.files import CACHE, frozen, remove_leftovers, write_atomically
from seqgen.task import Task


def open_run(cfg: TrainConfig, folder: Path, arguments: Arguments | None = None) -> Task:
    """Prepare a new run folder, or check that an existing run can be continued, and set up its task.

    Args:
        cfg: the whole configuration.
        folder: the run folder; its lock is held.
        arguments: what was given, for the record of where values come from; ``None`` for no record.

    Returns:
        The task.

    Raises:
        ConfigError: the run was started with another configuration.
        CheckpointError: a file that training wrote into the folder is missing or damaged.
    """
    for place in (folder, folder / CACHE):
        remove_leftovers(place)
    cfg.common.user_files = recorded_files(cfg, cfg.common.user_dir)
    begun = any((folder / FOLDER).glob("*/"))
    if (folder / CONFIG_FILE).exists():
        _check_continuation(cfg, folder, begun)
    with frozen(folder) if begun else nullcontext():
        task: Task = TASKS.of(cfg.task).component.setup_task(cfg.task, folder)  # type: ignore[attr-defined]
    if begun:
        verify_task(folder, task)
    values = dict(flatten(_plain(cfg)))
    if arguments is None:  # also on the other ranks under torchrun
        recorded = read_provenance(folder)
        origins = {key: recorded_origin(recorded, key, value) for key, value in values.items()} if recorded else {}
    else:
        found = origins_of(values, arguments.origins(), chosen_components(TrainConfig, arguments.overrides))
        command = [text for text in arguments.typed if not text.startswith("run_dir=")]  # the folder can be moved
        subsets = {cfg.dataset.train_subset, cfg.dataset.valid_subset} & {*task.splits()}
        data = {split: digest(task.data_files(split)) for split in sorted(subsets) if task.data_files(split)}
        origins = write_provenance(folder, values, found, command, data)
    write_config(folder, cfg, origins)
    write_run_checksums(folder, cfg, task)
    return task


def write_config(folder: Path, cfg: TrainConfig, origins: Mapping[str, str] | None = None) -> None:
    """Write the ``config.yaml`` of a run.

    Args:
        folder: the run folder.
        cfg: the whole configuration.
        origins: where the values come from, by key, for comments.

    Raises:
        UserError: the file cannot be written.
    """
    content = yaml.safe_dump(_plain(cfg), sort_keys=False, allow_unicode=True)
    content = with_origins(content, origins) if origins else content
    write_atomically(folder / CONFIG_FILE, content)


def _check_continuation(cfg: TrainConfig, folder: Path, begun: bool) -> None:
    """Check the files of a run, and that the run can be continued with a configuration.

    Args:
        cfg: the configuration to continue with.
        folder: the run folder.
        begun: whether the run has checkpoints. A run without them has only tokenizers and encoded text, which the user
            may delete.
    """
    before = read_run_config(folder)
    old, new = _plain(before), _plain(cfg)
    if begun:
        verify_run(folder, old)
        check_resumable(old, new)
    else:
        verify_tokenizers(folder, complete=False)
        otherwise = f", or delete {folder}, which has no checkpoints yet"
        check_resumable({"task": old["task"]}, {"task": new["task"]}, otherwise)


def _plain(cfg: TrainConfig) -> dict[str, Any]:
    """The configuration as it is saved: without ``run_dir``, because the folder can be moved, and ``prepare_only``."""
    return {key: value for key, value in to_dict(cfg).items() if key not in ("run_dir", "prepare_only")}
