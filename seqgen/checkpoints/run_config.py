"""The run folder of a path, and the configuration in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from seqgen.checkpoints.loaders import checkpoint_loader_of
from seqgen.checkpoints.serialization import digest
from seqgen.config import GenerationConfig, TrainConfig
from seqgen.config.keys import known_keys
from seqgen.config.values import check_compatible, from_dict, to_dict
from seqgen.core.errors import CheckpointError, ConfigError
from seqgen.system.error_messages import reading_errors
from seqgen.system.files import run_lock, write_atomically
from seqgen.system.reading import parse_json, parse_yaml, read_bytes
from seqgen.task import Task

CONFIG_FILE = "config.yaml"


def run_folder_of(checkpoint: Path) -> Path:
    """The run folder that a checkpoint lies in: the nearest folder above it with a configuration.

    Raises:
        CheckpointError: there is none.
    """
    if folder := run_folder(checkpoint):
        return folder
    raise CheckpointError(
        f"{checkpoint}: no folder above it contains a {CONFIG_FILE}; give a checkpoint inside its run folder"
    )


def run_folder(path: Path) -> Path | None:
    """The run folder of a path to a run, or to a checkpoint inside a run; ``None`` for all other paths."""
    if not path.exists() or checkpoint_loader_of(path) is not None:
        return None  # another toolkit's folder can have a config.yaml, too
    return next((folder for folder in (path, *path.resolve().parents) if (folder / CONFIG_FILE).is_file()), None)


def read_run_config(folder: Path, *, training: bool = True) -> TrainConfig:
    """Read the configuration of a run.

    Args:
        folder: the run folder.
        training: whether to read criterion, optimizer and learning-rate schedule, too. A model is used without them, so
            that their files need not exist where it is used.

    Raises:
        CheckpointError: the file is missing or no YAML.
        ConfigError: it holds an unknown key or a value of the wrong type.
    """
    plain = read_yaml(folder / CONFIG_FILE)
    if not training:
        plain = {key: value for key, value in plain.items() if key not in ("criterion", "optimizer", "lr_scheduler")}
    return from_dict(TrainConfig, plain, str(folder / CONFIG_FILE))


def save_generation(run: str | Path, cfg: GenerationConfig) -> None:
    """Change the default decoding settings of a run, which apply to keys that the user does not set.

    They are stored in the group ``generation`` of the run's ``config.yaml``, which also holds the settings used in
    validation. Continuing to train the run overwrites the group.

    Args:
        run: the run folder.
        cfg: the decoding settings; if its ``semantics`` is empty, the run's is kept.

    Raises:
        CheckpointError: it is no run folder, or one that is being trained.
        ConfigError: a value does not fit, or settings exclude each other.
    """
    path = Path(run) / CONFIG_FILE
    plain = read_yaml(path)
    before = plain.get("generation")
    semantics = cfg.semantics or (before.get("semantics", "") if isinstance(before, dict) else "")
    cfg = from_dict(GenerationConfig, {**to_dict(cfg), "semantics": semantics}, "generation")
    check_compatible(cfg)
    plain["generation"] = to_dict(cfg)
    with run_lock(path.parent):
        write_atomically(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of keys and values.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        with reading_errors(path, CheckpointError, f"there is no file {path}; give the folder that contains it"):
            content = parse_yaml(read_bytes(path))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: it must contain keys and values")
    return content


_WORLD_SIZE = "distributed_training.distributed_world_size"
_UPDATE_FREQ = "optimization.update_freq"
_MAY_CHANGE_IN = {
    "optimization": "max_update max_epoch stop_time_hours stop_min_lr checkpoint_activations out_of_memory",
    "checkpoint": "patience save_interval save_interval_updates save_interval_minutes keep_last_epochs "
    "keep_interval_updates",
    "model": "base",
    "task": "train valid test cache_dir workers",
    "common": "device threads user_dir log_interval log_format tensorboard",
    "distributed_training": "distributed_world_size distributed_backend sharding timeout",
    "dataset": (
        "num_workers max_tokens_valid batch_size_valid validate_interval validate_interval_updates validate_decode"
    ),
}
"""By group, the keys that may change when a run is resumed: lengths, files, devices, logging, validation, saving."""

MAY_CHANGE = frozenset(f"{group}.{key}" for group, keys in _MAY_CHANGE_IN.items() for key in keys.split()) | {"run_dir"}
MAY_CHANGE_GROUPS = ("generation.", "common.user_files.")
_LENGTH = "optimization.max_update"
_SCHEDULE_LENGTH = {"polynomial": "total_num_update", "cosine": "lr_period_updates"}
_MISSING = "(not set)"


def check_resumable(old: Mapping[str, Any], new: Mapping[str, Any], otherwise: str = "") -> None:
    """Check that a run can be continued with another configuration.

    Args:
        old: the run's configuration as nested plain values, as in its ``config.yaml``.
        new: the configuration to continue with, likewise.
        otherwise: what else the user can do, for the message.

    Raises:
        ConfigError: keys that influence training differ; the message lists them with both values.
    """
    before, after = dict(flatten(old)), dict(flatten(new))
    keys = [*before, *(key for key in after if key not in before)]
    differing = [key for key in keys if before.get(key, _MISSING) != after.get(key, _MISSING)]
    refused = [key for key in differing if not _may_change(key, before)]
    if _UPDATE_FREQ in refused and _batches_in_update(before) == _batches_in_update(after):
        refused.remove(_UPDATE_FREQ)
    if refused:
        lines = [f"  {key}: {before.get(key, _MISSING)} -> {after.get(key, _MISSING)}" for key in refused]
        hint = f"\n({_LENGTH} determines the length of this run's learning-rate schedule)" if _LENGTH in refused else ""
        if _UPDATE_FREQ in refused and _WORLD_SIZE in differing:
            hint += (
                f"\n({_UPDATE_FREQ} may change together with the number of processes, if their product stays the same)"
            )
        raise ConfigError(
            "this run was started with another configuration and cannot be continued with this one; set these "
            f"keys to their old values, or choose another run_dir{otherwise}:\n" + "\n".join(lines) + hint
        )


def _batches_in_update(config: Mapping[str, Any]) -> list[int]:
    """For each epoch, the number of batches of all processes in one update."""
    return [freq * config.get(_WORLD_SIZE, 1) for freq in config.get(_UPDATE_FREQ) or [1]]


def _may_change(key: str, before: Mapping[str, Any]) -> bool:
    if key == _LENGTH:
        length = _SCHEDULE_LENGTH.get(str(before.get("lr_scheduler._name")))
        return length is None or bool(before.get(f"lr_scheduler.{length}"))
    return key in MAY_CHANGE or key.startswith(MAY_CHANGE_GROUPS)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Walk through the leaves of nested mappings.

    Args:
        tree: nested mappings with string keys.
        prefix: what the names of all leaves begin with.

    Yields:
        The name of each leaf, which is its keys joined by dots, and its value.
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


RUN_CHECKSUMS = "checksums.json"
_ADVICE = "copy it again from where the run was trained"


def write_run_checksums(run: Path, config: TrainConfig, task: Task) -> None:
    """Write the checksums of a run's tokenizers and configuration.

    Args:
        run: the run folder, with its tokenizers.
        config: the run's configuration.
        task: the run's task.

    Raises:
        UserError: the file cannot be written.
    """
    content = {"files": tokenizer_digests(run), "fixed": _fixed(config), "values": task.fixed_values()}
    write_atomically(run / RUN_CHECKSUMS, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def tokenizer_digests(run: Path) -> dict[str, str]:
    """The checksum of each file of a run's tokenizers, by its path in the run folder."""
    folders = [path.parent for path in run.glob("*/tokenizer.json") if not path.parent.name.startswith(".")]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(run).as_posix(): digest(path) for path in files}


def verify_tokenizers(run: Path, complete: bool = True) -> None:
    """Check that the tokenizers are those that training made.

    Args:
        run: the run folder.
        complete: whether a missing file is an error.

    Raises:
        CheckpointError: a file is missing or has changed.
    """
    for name, expected in _read(run)["files"].items():
        path = run / name
        if not path.is_file():
            if complete:
                raise CheckpointError(f"{path} is missing; {_ADVICE}")
        elif digest(path) != expected:
            raise CheckpointError(
                f"{path}: its checksum differs from {RUN_CHECKSUMS}, so one of the two files is damaged or was "
                f"replaced after training; {_ADVICE}"
            )


def verify_run(run: Path, plain: Mapping[str, Any]) -> None:
    """Check that the tokenizers and the fixed keys are those that the weights were trained with.

    Args:
        run: the run folder.
        plain: the run's present configuration, as nested plain values.

    Raises:
        CheckpointError: a tokenizer or a fixed key has changed.
    """
    verify_tokenizers(run)
    _check_unchanged(run / CONFIG_FILE, _read(run)["fixed"], dict(flatten(plain)))


def verify_task(run: Path, task: Task) -> None:
    """Check that the task's fixed values are those that the weights were trained with.

    Args:
        run: the run folder.
        task: the run's task.

    Raises:
        CheckpointError: a value has changed.
    """
    _check_unchanged(run, _read(run)["values"], task.fixed_values())


def _check_unchanged(where: Path, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key, expected in recorded.items():
        if now.get(key) != expected:
            raise CheckpointError(
                f"{where}: {key} is {json.dumps(now.get(key))}, but the run was trained with {json.dumps(expected)} "
                f"({RUN_CHECKSUMS}); set it back"
            )


def _fixed(config: TrainConfig) -> dict[str, Any]:
    """The keys that may not change: all of the model; of the task its name, numbers, switches and choices.

    Other keys of the task are free text, such as paths, and those in ``MAY_CHANGE`` may also change.
    """
    plain = to_dict(config)
    fixed = dict(flatten({"model": plain["model"], "task": {"_name": plain["task"]["_name"]}}))
    fixed = {key: value for key, value in fixed.items() if key not in MAY_CHANGE}
    for key, field, value in known_keys(config.task, "task."):
        if key not in MAY_CHANGE and (isinstance(value, bool | int | float) or field.metadata.get("choices")):
            fixed[key] = value
    return fixed


def _read(run: Path) -> dict[str, dict[str, Any]]:
    """The content of the file; empty parts where there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    path, parts = run / RUN_CHECKSUMS, ("files", "fixed", "values")
    if not path.exists():
        return {part: {} for part in parts}
    try:
        content = parse_json(read_bytes(path))
        if all(isinstance(content[part], dict) for part in parts):
            return dict(content)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise CheckpointError(f"{path} is damaged; {_ADVICE}")
