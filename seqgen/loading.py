"""Loading trained models: from a path to a model with its task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from seqgen.compose import from_dict
from seqgen.config import TrainConfig
from seqgen.errors import CheckpointError
from seqgen.model import EncoderDecoderModel
from seqgen.registry import TASKS
from seqgen.task import Task
from seqgen.training.checkpoints import load_weights, resolve

CONFIG_FILE = "config.yaml"


@dataclass(frozen=True)
class LoadedModel:
    """A trained model and what it needs to read and write text.

    Attributes:
        model: the model, in evaluation mode.
        task: encodes and decodes text.
        config: the configuration that it was trained with.
        checkpoint: the checkpoint that the weights come from.
    """

    model: EncoderDecoderModel
    task: Task
    config: TrainConfig
    checkpoint: Path


def load_model(path: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> LoadedModel:
    """Load a trained model.

    Args:
        path: a run folder (its best checkpoint is taken) or a checkpoint inside one.
        device: where to put it.
        dtype: number format of the weights; as saved if not given.

    Returns:
        The model with its task.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or it does not fit its configuration.
    """
    checkpoint = resolve(Path(path))
    folder = run_folder_of(checkpoint)
    config = read_run_config(folder)
    task: Task = TASKS.of(config.task).component.setup_task(config.task, folder)  # type: ignore[attr-defined]
    model = task.build_model(config.model)
    load_weights(model, checkpoint)
    model.to(device=device, dtype=dtype)
    return LoadedModel(model.eval(), task, config, checkpoint)


def run_folder_of(checkpoint: Path) -> Path:
    """The run folder that a checkpoint lies in: the nearest folder above it with a configuration.

    Raises:
        CheckpointError: there is none.
    """
    for folder in checkpoint.resolve().parents:
        if (folder / CONFIG_FILE).is_file():
            return folder
    raise CheckpointError(
        f"{checkpoint}: no folder above it has a {CONFIG_FILE}; give a checkpoint inside its run folder"
    )


def read_run_config(folder: Path) -> TrainConfig:
    """Read the configuration of a run.

    Args:
        folder: the run folder.

    Raises:
        CheckpointError: the file is missing or no YAML.
        ConfigError: it holds an unknown key or a value of the wrong type.
    """
    return from_dict(TrainConfig, read_yaml(folder / CONFIG_FILE), str(folder / CONFIG_FILE))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of keys and values.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}; {path.parent} is not a run folder") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: it holds no keys and values")
    return content
