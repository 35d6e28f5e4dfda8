"""Makes the original of a tiny random model (transformers), which the files of the families then randomize."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch


def make_original(head: str, values: Mapping[str, Any], seed: int, **options: Any) -> Any:
    """Build a model of transformers with initial weights.

    Args:
        head: what its class is for, such as ``"CausalLM"``.
        values: its ``config.json``, with ``model_type``.
        seed: seed of the weights.
        options: further arguments of ``from_config``.
    """
    transformers = pytest.importorskip("transformers")
    kind, rest = values["model_type"], {key: value for key, value in values.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(kind, **rest)
    torch.manual_seed(seed)
    return getattr(transformers, f"AutoModelFor{head}").from_config(config, **options)
