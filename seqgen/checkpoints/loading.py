"""Loading trained models: from a path to a model with its task.

A path names a run of seqgen, or a checkpoint of another toolkit that a registered checkpoint loader recognizes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from seqgen.checkpoints.hub import local_path
from seqgen.checkpoints.loaders import LoadedModel, Placement, checkpoint_loader_of
from seqgen.checkpoints.model_weights import (
    build_checked,
    can_materialize,
    check_size,
    load_weights,
    materialize,
)
from seqgen.checkpoints.run_checkpoints import resolve, weight_shapes
from seqgen.checkpoints.run_config import read_run_config, run_folder_of
from seqgen.checkpoints.run_record import verify_run, verify_task
from seqgen.config import ReadingConfig
from seqgen.config.values import to_dict
from seqgen.errors import ConfigError, UserError
from seqgen.generation.resolution import settings_of_model
from seqgen.registry import TASKS
from seqgen.system.devices import find_device
from seqgen.system.files import frozen
from seqgen.task import Task

WEIGHT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that loaded weights can have."""


def load_models(
    paths: Sequence[str],
    device: torch.device | str = "cpu",
    reading: ReadingConfig | None = None,
    dtype: torch.dtype | str | None = torch.float32,
) -> list[LoadedModel]:
    """Load the members of an ensemble.

    Args:
        paths: what ``load_model`` takes; several in one string are separated by colons, as in fairseq.
        device: where to put them.
        reading: what checkpoints of other toolkits lack.
        dtype: dtype of the weights, or its name; ``None`` for the dtype in which they were saved.

    Raises:
        CheckpointError: one cannot be loaded.
        ConfigError: ``reading`` has values but all models are runs of seqgen, or the device or dtype is not available.
    """
    separate = [str(local_path(part)) for path in paths for part in split_path(path)]
    given = [key for key, value in to_dict(reading or ReadingConfig()).items() if value]
    toolkits = {checkpoint_loader_of(Path(path)) for path in separate} - {None}
    if given and not toolkits:
        raise ConfigError(
            f"reading.{given[0]} applies only to checkpoints of other toolkits, but {', '.join(separate)} is a run of "
            "seqgen; remove the key"
        )
    try:
        return [load_model(path, device, dtype, reading) for path in separate]
    except UserError as error:
        if given and len(toolkits) > 1:
            raise type(error)(
                f"{error} (reading.{given[0]} applies to the models of all toolkits in path; in place of the key, put "
                "the files of each model into its folder)"
            ) from None
        raise


def split_path(path: str) -> list[str]:
    """Split ``a.pt:b.pt`` at its colons, unless it is an address, or a file or folder of that whole name exists.

    The colon of ``hf:`` at the beginning of a part belongs to the part.
    """
    if ":" not in path or "://" in path or Path(path).exists():
        return [path]
    return [part for part in re.split(r"(?<!^hf)(?<!:hf):", path) if part]


def load_model(
    path: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str | None = None,
    reading: ReadingConfig | None = None,
) -> LoadedModel:
    """Load a trained model.

    On a CPU, weights that are used in the dtype of their ``safetensors`` file stay in it, and the file must not be
    written to; see ``seqgen.system.mapped_weights``. In ``with MAPPED_WEIGHTS.off()`` they are copied.

    Args:
        path: a run folder (its best checkpoint is loaded), a checkpoint inside one, a path that a checkpoint loader
            recognizes, or ``hf:ORGANIZATION/NAME[@REVISION]`` for a model on the Hugging Face Hub.
        device: where to put it.
        dtype: dtype of the weights, or its name, such as ``"bfloat16"``; as saved if not given.
        reading: what a checkpoint of another toolkit lacks.

    Returns:
        The model with its task.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or it does not fit its configuration.
        ConfigError: the device or dtype is not available.
        DataError: a vocabulary or tokenizer is missing or damaged.
    """
    local = local_path(path)
    placement = Placement(find_device(device), _weight_dtype(dtype))
    loader = checkpoint_loader_of(local)
    if loader is None:
        loaded = _load_run(local, placement)
    else:
        loaded = loader(local, reading or ReadingConfig(), placement)
    loaded.model.to(device=placement.device, dtype=placement.dtype).eval()
    return loaded


def _weight_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype with a name, such as ``"bfloat16"``; a dtype or ``None`` is returned unchanged.

    Raises:
        ConfigError: it is not one of ``WEIGHT_DTYPES``.
    """
    known = {str(one).removeprefix("torch."): one for one in WEIGHT_DTYPES}
    found = known.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and found not in WEIGHT_DTYPES:
        raise ConfigError(f"dtype={dtype} is not a dtype that weights can have; choose one of: {', '.join(known)}")
    return found


def _load_run(path: Path, placement: Placement) -> LoadedModel:
    checkpoint = resolve(path)
    folder = run_folder_of(checkpoint)
    config = read_run_config(folder, training=False)
    verify_run(folder, to_dict(config))
    with frozen(folder):
        task: Task = TASKS.of(config.task).component.setup_task(config.task, folder)  # type: ignore[attr-defined]
    verify_task(folder, task)
    model = check_size(lambda: task.build_model(config.model), weight_shapes(checkpoint), str(checkpoint))
    if model is not None and can_materialize(model):
        model.to(placement.dtype)
        materialize(model, placement.device)
    else:
        model = build_checked(lambda: task.build_model(config.model), str(checkpoint))
    load_weights(model, checkpoint)
    return LoadedModel(model, task, config, checkpoint, generation=settings_of_model(config.generation))
