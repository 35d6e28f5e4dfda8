"""Preparation of a run folder before training, with a record of the command."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from seqgen.checkpoints import run_config
from seqgen.checkpoints.run_checkpoints import FOLDER
from seqgen.cli.command import Arguments, log
from seqgen.cli.provenance import add_session, read_sessions, recorded_data
from seqgen.config import TrainConfig
from seqgen.config.user_files import recorded_files
from seqgen.config.values import to_dict
from seqgen.core.errors import ConfigError
from seqgen.data.text import digest
from seqgen.data.tokenizers.setup import TokenizerConfig, given_vocabulary
from seqgen.registry import TASKS
from seqgen.system.files import CACHE, frozen, remove_leftovers, write_atomically
from seqgen.task import Task

TOKENIZERS = ("tokenizer", "source_tokenizer", "target_tokenizer")
"""The folders of a run's tokenizers."""


def open_run(cfg: TrainConfig, folder: Path, arguments: Arguments | None = None) -> Task:
    """Prepare a new run folder, or check that an existing run can be continued, and set up its task.

    Args:
        cfg: the whole configuration.
        folder: the run folder; its lock is held.
        arguments: what was given, for the record of the run; ``None`` for no record.

    Returns:
        The task.

    Raises:
        ConfigError: the run was started with another configuration, or the folder is not one for a new run.
        DataError: text is missing.
        CheckpointError: a file that training wrote into the folder is missing or damaged.
    """
    remove_leftovers(folder, seconds=0)
    remove_leftovers(folder / CACHE)
    cfg.common.user_files = recorded_files(cfg, cfg.common.user_dir)
    begun = any((folder / FOLDER).glob("*/"))
    component: type[Task] = TASKS.of(cfg.task).component  # type: ignore[assignment]
    subsets = sorted({cfg.dataset.train_subset, cfg.dataset.valid_subset})
    needed = [split for split in subsets if not cfg.prepare_only or getattr(cfg.task, split, False)]
    files = {split: component.data_files(cfg.task, folder, split) for split in needed}
    data = {split: digest(paths) for split, paths in files.items() if paths and arguments is not None}
    if (folder / run_config.CONFIG_FILE).exists():
        _check_continuation(cfg, folder, begun, data)
    else:
        _check_new(folder, files)
    if len({*data.values()}) < len(data):
        log(f"the text of {' and '.join(data)} is the same, so validation scores are those of training text")
    with frozen(folder) if begun else nullcontext():
        task = component.setup_task(cfg.task, folder)
    if begun:
        run_config.verify_task(folder, task)
    if arguments is not None:  # under torchrun, the other ranks have none
        command = [text for text in arguments.typed if not text.startswith("run_dir=")]  # the folder can be moved
        add_session(folder, command, data)
    write_config(folder, cfg)
    run_config.write_run_checksums(folder, cfg, task)
    return task


def write_config(folder: Path, cfg: TrainConfig) -> None:
    """Write the ``config.yaml`` of a run.

    Args:
        folder: the run folder.
        cfg: the whole configuration.

    Raises:
        UserError: the file cannot be written.
    """
    write_atomically(folder / run_config.CONFIG_FILE, yaml.safe_dump(_plain(cfg), sort_keys=False, allow_unicode=True))


def _check_new(folder: Path, files: Mapping[str, Sequence[Path]]) -> None:
    """Check the folder of a new run, which must contain neither the text nor a tokenizer.

    Args:
        folder: the run folder.
        files: the files of each split.

    Raises:
        ConfigError: it does.
    """
    for path in chain.from_iterable(files.values()):
        if path.resolve().parent == folder.resolve():
            raise ConfigError(f"run_dir={folder} is the folder of the text {path.name}; give the run its own folder")
    for name in TOKENIZERS:
        if (folder / name).exists():
            raise ConfigError(
                f"{folder / name} exists without a {run_config.CONFIG_FILE} that says how it was made; choose another "
                f"run_dir, or delete {folder / name} if it is left from a start that failed"
            )


def _check_continuation(cfg: TrainConfig, folder: Path, begun: bool, data: Mapping[str, str]) -> None:
    """Check the files of a run, and that the run can be continued with a configuration.

    A run without checkpoints has only tokenizers and encoded text. If it comes from a start that failed, and the
    corrected command has another task or text, its tokenizers are removed, so that new ones are made.

    Args:
        cfg: the configuration to continue with.
        folder: the run folder.
        begun: whether the run has checkpoints.
        data: the hash of the text of each split.

    Raises:
        ConfigError: a key or the training text differs, and the run has checkpoints or was prepared.
    """
    old, new = _plain(run_config.read_run_config(folder)), _plain(cfg)
    subset = cfg.dataset.train_subset
    sessions = read_sessions(folder)
    other_text = bool(data) and recorded_data(sessions, subset) not in ("", data.get(subset))
    if begun:
        run_config.verify_run(folder, old)
        run_config.check_resumable(old, new)
        if other_text:
            raise ConfigError(
                f"the text of {subset} has changed since the run in {folder} was started; continue with the same text, "
                "or choose another run_dir (checkpoint.finetune_from begins with the weights of this run)"
            )
    else:
        run_config.verify_tokenizers(folder, complete=False)
        otherwise = f", or delete {folder}, which has no checkpoints yet"
        trained = isinstance(cfg.task, TokenizerConfig) and not given_vocabulary(cfg.task)
        try:
            run_config.check_resumable({"task": old["task"]}, {"task": new["task"]}, otherwise)
            if trained and run_config.tokenizer_digests(folder) and other_text:
                raise ConfigError(
                    f"the tokenizer in {folder} was trained on other text than that of this command; choose another "
                    f"run_dir{otherwise}"
                )
        except ConfigError:
            if any(session.get("prepared") for session in sessions):
                raise
            log(f"{folder} is left from a start that failed, with another task or text, and is prepared again")
            for name in TOKENIZERS:
                shutil.rmtree(folder / name, ignore_errors=True)


def _plain(cfg: TrainConfig) -> dict[str, Any]:
    """The configuration as it is saved: without ``run_dir``, because the folder can be moved, and ``prepare_only``."""
    return {key: value for key, value in to_dict(cfg).items() if key not in ("run_dir", "prepare_only")}
