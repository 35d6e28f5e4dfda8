"""Checkpoint loaders: functions that read the checkpoints of other toolkits.

A loader is declared with a function that tells whether it can load a path; its module is imported only for such a
path::

    declare_checkpoint_loader("fairseq checkpoint", lambda path: path.suffix == ".pt", "my_package.fairseq")

    @register_checkpoint_loader("fairseq checkpoint")  # in that module
    def read(path: Path, reading: ReadingConfig, placement: Placement) -> LoadedModel: ...
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch

from seqgen.config import ReadingConfig, TrainConfig
from seqgen.data.tokenizers.base import save_tokenizer
from seqgen.model import EncoderDecoderModel
from seqgen.task import Task


@dataclass(frozen=True)
class LoadedModel:
    """A trained model and what it needs to read and write text.

    Attributes:
        model: the model, in evaluation mode.
        task: encodes and decodes text.
        config: the configuration that it was trained with; of a checkpoint of another toolkit only the model's.
        checkpoint: the checkpoint that the weights come from.
        task_values: for a checkpoint of another toolkit, the name (``_name``) and values of a task that such a model
            can be trained on, so that it can be made a run.
        notes: what the user should know about how it was read.
        generation: the model's decoding settings, by the names of ``GenerationConfig``'s fields; they apply to keys
            that the user does not set.
    """

    model: EncoderDecoderModel
    task: Task
    config: TrainConfig
    checkpoint: Path
    task_values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    generation: dict[str, Any] = field(default_factory=dict)

    def save_tokenizers(self, folder: Path) -> None:
        """Write the tokenizers into a folder, each into a folder: one for both sides, or one for each.

        Args:
            folder: such as a run folder.
        """
        source, target = self.task.source_tokenizer, self.task.target_tokenizer
        names = {"tokenizer": source} if source is target else {"source_tokenizer": source, "target_tokenizer": target}
        for name, tokenizer in names.items():
            save_tokenizer(tokenizer, folder / name)


@dataclass(frozen=True)
class Placement:
    """Device and dtype of the model. A loader may use them to avoid a second copy of the weights, or ignore them.

    Attributes:
        device: the device.
        dtype: dtype of the weights; ``None`` for the dtype in which they were saved.
    """

    device: torch.device
    dtype: torch.dtype | None = None


CheckpointLoader: TypeAlias = Callable[[Path, ReadingConfig, Placement], LoadedModel]

_DECLARED: dict[str, tuple[Callable[[Path], bool], str]] = {}

_LOADERS: dict[str, CheckpointLoader] = {}


def declare_checkpoint_loader(kind: str, recognizes: Callable[[Path], bool], module: str) -> None:
    """Declare which module loads one kind of checkpoint, so that it is imported only when needed.

    Args:
        kind: what it loads, in words, such as ``"fairseq checkpoint"``.
        recognizes: whether a path is of that kind; it should check names rather than contents, to be fast.
        module: dotted name of the module, which calls ``register_checkpoint_loader(kind)``.
    """
    _DECLARED[kind] = (recognizes, module)


def register_checkpoint_loader(
    kind: str, recognizes: Callable[[Path], bool] | None = None
) -> Callable[[CheckpointLoader], CheckpointLoader]:
    """Register the decorated function as the checkpoint loader for one kind of checkpoint.

    Args:
        kind: what it loads, in words.
        recognizes: whether a path is of that kind; required if the kind was not declared before.
    """

    def decorator(loader: CheckpointLoader) -> CheckpointLoader:
        if recognizes is not None:
            declare_checkpoint_loader(kind, recognizes, loader.__module__)
        _LOADERS[kind] = loader
        return loader

    return decorator


def checkpoint_loader_of(path: Path) -> CheckpointLoader | None:
    """The checkpoint loader that recognizes a path, its module imported; ``None`` if there is none, as for a run."""
    for kind, (recognizes, module) in _DECLARED.items():
        if recognizes(path):
            if kind not in _LOADERS:
                importlib.import_module(module)
            return _LOADERS[kind]
    return None
