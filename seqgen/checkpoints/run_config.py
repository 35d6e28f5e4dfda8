"""The run folder of a path, and the configuration in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from seqgen.checkpoints.loaders import checkpoint_loader_of
from seqgen.config import GenerationConfig, TrainConfig
from seqgen.config.values import check_compatible, from_dict, to_dict
from seqgen.errors import CheckpointError
from seqgen.system.files import run_lock, write_atomically
from seqgen.system.reading import parse_yaml, read_bytes

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
    """The run folder that a path to a run or to a checkpoint inside one means; ``None`` for all other paths."""
    if not path.exists() or checkpoint_loader_of(path) is not None:
        return None  # another toolkit's folder can have a config.yaml, too
    return next((folder for folder in (path, *path.resolve().parents) if (folder / CONFIG_FILE).is_file()), None)


def recorded_user_dirs(folder: Path) -> list[str]:
    """The files and folders of the user's own that a run records (``common.user_dir``).

    Args:
        folder: the run folder.

    Raises:
        CheckpointError: its configuration is missing or damaged.
    """
    common = read_yaml(folder / CONFIG_FILE).get("common")
    recorded = common.get("user_dir") if isinstance(common, dict) else None
    items = recorded if isinstance(recorded, list) else [recorded]
    return [item for item in items if isinstance(item, str) and item]


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
        cfg: the decoding settings; if its ``semantics`` is empty, the run keeps its own.

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
        content = parse_yaml(read_bytes(path))
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}; give the folder that contains it") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: it must contain keys and values")
    return content
