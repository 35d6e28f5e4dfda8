"""Arguments of training that follow from the checkpoint to fine-tune (``checkpoint.finetune_from``)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqgen.checkpoints.hub import local_path
from seqgen.checkpoints.loading import checkpoint_loader_of, load_model, read_run_config, run_folder
from seqgen.checkpoints.run_checkpoints import resolve
from seqgen.cli.config_file import as_typed
from seqgen.config import TrainConfig
from seqgen.config.arguments import split_argument, text_values
from seqgen.config.compose import chosen_components
from seqgen.config.keys import known_keys
from seqgen.data.tokenizers.pretrained import PretrainedTokenizer
from seqgen.data.tokenizers.setup import TokenizerConfig
from seqgen.errors import CheckpointError, UserError
from seqgen.registry import GROUPS, TASKS

TOKENIZER_KEYS = ("tokenizer", "pretrained_tokenizer", "spm_model", "srcdict")
"""Keys of the task by which the user chooses a tokenizer."""


def with_checkpoint(overrides: Sequence[str]) -> list[str]:
    """Complete the arguments of training if the initial weights come from a checkpoint.

    Without ``model=NAME``, the model is the checkpoint's; ``model.KEY=VALUE`` changes single keys. Without a tokenizer,
    or with the keys of the run's own, that of the run or of the Hugging Face folder is used. Without ``task=NAME``, the
    task is the run's, too.

    Args:
        overrides: ``key=value`` arguments.

    Returns:
        The arguments, after those that follow from the checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be read.
    """
    path = next(iter(text_values(overrides, "checkpoint.finetune_from", str)), "")
    if not path:
        return list(overrides)
    given = dict(split_argument(override) for override in overrides)
    try:
        return [f"{key}={value}" for key, value in _completed(local_path(path), given).items()]
    except UserError as error:
        raise CheckpointError(f"checkpoint.finetune_from: {error}") from None


def _completed(path: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The keys that the user gave, with those that follow from a checkpoint."""
    if checkpoint_loader_of(path) is not None:
        model = {} if "model" in given else dict(_model_of_other_toolkit(path))
        return _with_tokenizer({**model, **given}, path, {}) if (path / "config.json").is_file() else {**model, **given}
    if not path.exists() and "model" in given:  # only a new run reads it
        return dict(given)
    resolve(path)  # before anything is written
    run = run_folder(path)
    if run is None:
        return dict(given)
    config = read_run_config(run)
    model = {} if "model" in given else component_arguments("model", config.model)
    has_task = "task" in given or not TASKS.of(config.task).can_be_chosen
    task = {} if has_task else component_arguments("task", config.task)
    return _with_tokenizer({**model, **task, **given}, run, _values("task", config.task))


def _with_tokenizer(arguments: dict[str, str], folder: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Use the tokenizer of a run or of a Hugging Face folder, if the task has one and the user chooses no other.

    Args:
        arguments: the arguments, by key.
        folder: the folder with the tokenizer.
        own: the keys of the run's task, which mean the same tokenizer.
    """
    task = GROUPS["task"].config(chosen_components(TrainConfig, [f"{k}={v}" for k, v in arguments.items()])["task"])
    differing = {key for key, value in arguments.items() if own.get(key) != value}
    if not isinstance(task, TokenizerConfig) or differing & {f"task.{key}" for key in TOKENIZER_KEYS}:
        return arguments
    made = (
        {f"task.{field.name}" for field in dataclasses.fields(TokenizerConfig)} - differing - {"task.subword_sampling"}
    )
    joined = {"task.joined_dictionary": "false"} if (folder / "source_tokenizer").is_dir() else {}
    chosen = {"task.tokenizer": "pretrained", "task.pretrained_tokenizer": str(folder), **joined}
    return {**chosen, **{key: value for key, value in arguments.items() if key not in made - differing}}


@functools.lru_cache(maxsize=1)
def _model_of_other_toolkit(path: Path) -> tuple[tuple[str, str], ...]:
    loaded = load_model(path)
    own = component_arguments("model", loaded.config.model)
    if isinstance(loaded.task.target_tokenizer, PretrainedTokenizer):  # has a token for each row
        own.pop("model.vocab_size", None)
    return tuple(own.items())


def component_arguments(group: str, cfg: Any) -> dict[str, str]:
    """The arguments that choose a model or another component.

    Args:
        group: its group, such as ``model``.
        cfg: its configuration.

    Returns:
        ``model=NAME``, and ``model.KEY=VALUE`` for each key that differs from its default.
    """
    defaults = _values(group, type(cfg)())
    changed = {key: value for key, value in _values(group, cfg).items() if value != defaults[key]}
    return {group: GROUPS[group].of(cfg).name, **changed}


def _values(group: str, cfg: Any) -> dict[str, str]:
    return {f"{group}.{key}": as_typed(value) for key, _, value in known_keys(cfg)}
