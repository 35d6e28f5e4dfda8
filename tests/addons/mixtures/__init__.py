"""Tests of the add-on mixtures."""

from collections.abc import Mapping
from typing import Any

SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2, "num_layers": 1}


def training_keys(task: str, settings: Mapping[str, Any]) -> list[str]:
    """Arguments of ``seqgen-train`` for a very small T5."""
    return [
        *(f"task={task}", "model=t5_tiny", *(f"model.{key}={value}" for key, value in SIZES.items())),
        *(f"task.{key}={str(value).lower()}" for key, value in settings.items()),
        *("dataset.max_tokens_valid=8000", "dataset.num_workers=0"),
        *("common.log_format=none", "common.tensorboard=false", "common.threads=1"),
    ]
