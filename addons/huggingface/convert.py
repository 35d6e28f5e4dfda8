"""``seqgen-convert format=huggingface``."""

from __future__ import annotations

from typing import Any

from seqgen.addons.huggingface.checkpoint import save_pretrained
from seqgen.config import GenerationConfig
from seqgen.extend import LoadedModel, log, num_parameters


def check(cfg: Any) -> None:
    """Nothing is needed besides the model; see ``WRITERS``.

    Args:
        cfg: the configuration of ``seqgen-convert``.
    """


def write(cfg: Any, loaded: LoadedModel) -> None:
    """Write a model, and print how to use it.

    Args:
        cfg: the configuration of ``seqgen-convert``.
        loaded: the model.

    Raises:
        UserError: see ``save_pretrained``.
    """
    wanted = GenerationConfig(**loaded.generation) if loaded.generation else loaded.config.generation
    for note in save_pretrained(loaded.model, cfg.output, loaded.task.target_tokenizer, wanted):
        log(f"{cfg.output}: {note}")
    name = type(loaded.model).__name__
    print(f"{cfg.output}: {name} of {num_parameters(loaded.model):,} parameters, from {cfg.path[0]}")
    print(f"decode:    seqgen-generate path={cfg.output} input=FILE")
