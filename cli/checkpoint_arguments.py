"""Arguments of training that follow from the checkpoint to fine-tune (``checkpoint.finetune_from``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqgen.arguments import split_argument, text_values
from seqgen.checkpoints.hub import local_path
from seqgen.checkpoints.loading import checkpoint_loader_of, load_model
from seqgen.checkpoints.run_checkpoints import resolve
from seqgen.compose import chosen_components
from seqgen.config import TrainConfig
from seqgen.config_keys import known_keys
from seqgen.data.tokenizers.pretrained import PretrainedTokenizer
from seqgen.data.tokenizers.setup import TokenizerConfig
from seqgen.errors import CheckpointError, UserError
from seqgen.registry import GROUPS, MODELS

TOKENIZER_KEYS = ("tokenizer", "pretrained_tokenizer", "spm_model", "srcdict")
"""Keys of the task by which the user chooses a tokenizer."""


def with_checkpoint(overrides: Sequence[str]) -> list[str]:
    """Complete the arguments of training if the initial weights come from a checkpoint of another toolkit.

    Without ``model=NAME``, the model is the checkpoint's; ``model.KEY=VALUE`` changes single keys. Without a tokenizer,
    that of the Hugging Face folder is used.

    Args:
        overrides: ``key=value`` arguments.

    Returns:
        The arguments, after those that follow from the checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be read.
    """
    path = next(iter(text_values(overrides, "checkpoint.finetune_from", str)), "")
    path = str(local_path(path)) if path else ""
    keys = {split_argument(override)[0] for override in overrides}
    if not path or checkpoint_loader_of(Path(path)) is None:
        if path and "model" not in keys and not Path(path).exists():
            try:
                resolve(path)
            except CheckpointError as error:
                raise CheckpointError(f"checkpoint.finetune_from: {error}") from None
        return list(overrides)
    added = [] if "model" in keys else list(_arguments_of_model(path))
    task = GROUPS["task"].config(chosen_components(TrainConfig, overrides)["task"])
    chosen = any(f"task.{key}" in keys for key in TOKENIZER_KEYS)
    if isinstance(task, TokenizerConfig) and not chosen and (Path(path) / "config.json").is_file():
        added += ["task.tokenizer=pretrained", f"task.pretrained_tokenizer={path}"]
    return [*added, *overrides]


@functools.lru_cache(maxsize=1)
def _arguments_of_model(path: str) -> tuple[str, ...]:
    try:
        loaded = load_model(path)
    except UserError as error:
        raise CheckpointError(f"checkpoint.finetune_from: {error}") from None
    model = loaded.config.model
    own = model_arguments(model)
    if isinstance(loaded.task.target_tokenizer, PretrainedTokenizer):  # has a token for each row
        own = [argument for argument in own if not argument.startswith("model.vocab_size=")]
    return tuple(own)


def model_arguments(model: Any) -> list[str]:
    """The arguments that choose a model.

    Args:
        model: its configuration.

    Returns:
        ``model=NAME``, and ``model.KEY=VALUE`` for each key that differs from its default.
    """
    defaults = {key: value for key, _, value in known_keys(type(model)())}
    changed = [(key, value) for key, _, value in known_keys(model) if value != defaults[key]]
    values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in changed}
    return [f"model={MODELS.of(model).name}", *(f"model.{key}={value}" for key, value in values.items())]
