"""A form in which a model is written: its weights as NumPy arrays, and the tokens of its vocabularies.

``seqgen-convert common.user_dir=examples/extending/model_format.py path=runs/a format=numpy output=a.numpy``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy

from seqgen.extend import LoadedModel, new_folder, num_parameters, register_model_format


@register_model_format("numpy")
def write_numpy(cfg: Any, loaded: LoadedModel) -> None:
    """Write ``weights.npz`` and ``tokens.json``.

    Args:
        cfg: the keys of the command.
        loaded: the model with its task.
    """
    with new_folder(Path(cfg.output), exist_ok=False) as folder:
        numpy.savez(folder / "weights.npz", **{name: t.numpy() for name, t in loaded.model.state_dict().items()})
        task = loaded.task
        tokens = {"source": [*task.source_dictionary], "target": [*task.target_dictionary]}
        (folder / "tokens.json").write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    print(f"{cfg.output}: {num_parameters(loaded.model):,} parameters, from {cfg.path[0]}")
