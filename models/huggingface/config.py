"""A JSON file of a Hugging Face folder whose values are read by name and type."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqgen.checkpoints.serialization import read_json
from seqgen.errors import CheckpointError, shown

LARGEST = 2**31 - 1
"""The largest whole number that a file may have; no size or count of a model is larger."""


NO_EFFECT = frozenset(
    """
    architectures use_cache num_labels id2label label2id problem_type finetuning_task task_specific_params
    tokenizer_class prefix torchscript output_past return_dict use_bfloat16 gradient_checkpointing attn_implementation
    chunk_size_feed_forward cross_attention_hidden_size sep_token_id tf_legacy_loss classifier_dropout auto_map
    name_or_path adapters tokenizer_type
    """.split()  # noqa: SIM905
)
"""Keys of a ``config.json`` that do not change what transformers 4.53.3 computes, whatever the model."""


@dataclass(frozen=True)
class ModelSize:
    """What a configuration describes, to compare with the size of the files before anything is built.

    Attributes:
        vocab_size: rows of the embedding.
        layers: layers of all stacks together.
        parameters: parameters of the weight matrices; norms and biases, which are few, are not counted.
        buffers: values of tables that are computed, of which the files have none.
    """

    vocab_size: int
    layers: int
    parameters: int
    buffers: int = 0


@dataclass(frozen=True)
class JSONConfig:
    """A ``config.json`` or its like; a value that is ``null`` counts as not given.

    Attributes:
        path: the file, for messages.
        values: its content.
        asked: the keys that were asked for.
    """

    path: Path
    values: Mapping[str, Any]
    asked: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> JSONConfig:
        """Read a file.

        Raises:
            CheckpointError: it is missing, no JSON, or holds no keys and values.
        """
        values = read_json(path)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} is damaged: it must contain keys and values")
        return cls(path, values)

    def integer(self, name: str, default: int, minimum: int = 0) -> int:
        """A whole number of at least ``minimum``."""
        value = self.value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.wrong(name, value, f"a whole number of at least {minimum}")
        if value > LARGEST:
            raise self.wrong(name, value, f"a whole number of at most {LARGEST}")
        return value

    def number(self, name: str, default: float) -> float:
        """A number that is not infinite."""
        value = self.value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
            raise self.wrong(name, value, "a number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.value(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def string(self, name: str, default: str = "") -> str:
        """A text."""
        value = self.value(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def value(self, name: str, default: Any = None) -> Any:
        """A value of any type."""
        self.asked.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def wrong(self, name: str, value: Any, wanted: str) -> CheckpointError:
        """The error that a value is not of the wanted type."""
        return CheckpointError(f"{self.path}: {name} is {shown(value)}, not {wanted}")
