"""The declaration of a configuration key, and the ``common`` group: keys that every command has."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MOST_WORKERS = 1024
"""Largest number of threads or processes that a key may ask for; far more end in a crash of the OpenMP library."""


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    role: Literal["", "input_path", "output_path", "code"] = "",
    other_names: Sequence[str] = (),
    **facts: Any,
) -> Any:
    """Declare a configuration field::

        dropout: float = option(0.1, "dropout probability of features", minimum=0, maximum=1)

    Args:
        default: the default; a list is copied for each instance.
        help: one line that says what the value does, with its unit.
        choices: the allowed values of a string.
        minimum: smallest allowed value of a number, or of each number in a list.
        maximum: largest allowed value, likewise.
        role: ``input_path`` if the value names a file or folder to read, ``output_path`` if it names something that is
            written, ``code`` if it names something that can run code. The last two are taken from the command line
            only, not from ``config=FILE``.
        other_names: names of the key in other toolkits that are not its last part; a hint for a key that does not
            exist gives this key for them.
        facts: further facts, which become metadata of the field.

    Returns:
        The dataclass field.
    """
    limits = {"choices": choices, "minimum": minimum, "maximum": maximum}
    return _field(default, {"help": help, **limits, "role": role, "other_names": other_names, **facts})


def like(config: type, name: str, default: Any = dataclasses.MISSING) -> Any:
    """Declare a configuration field as another configuration declares it.

    Args:
        config: the other configuration.
        name: its field.
        default: the default, if it differs.
    """
    field = {field.name: field for field in dataclasses.fields(config)}[name]
    return _field(getattr(config(), name) if default is dataclasses.MISSING else default, field.metadata)


def _field(default: Any, metadata: Mapping[str, Any]) -> Any:
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass
class CommonConfig:
    """Keys that every command has."""

    device: str = option(
        "auto", "device to compute on; auto uses a GPU if there is one", choices=("auto", "cpu", "cuda", "mps")
    )
    threads: int = option(0, "CPU threads; 0 for one per core", minimum=0, maximum=MOST_WORKERS)
    keep_freed_memory: bool = option(
        True, "keep freed memory for reuse instead of returning it to the system (glibc only): faster on a CPU"
    )
    user_dir: list[str] = option(
        [],
        "Python files or folders with your own components (models, tasks, search strategies, ...), imported before "
        "anything else",
        role="code",
    )


@dataclass
class DecodingCommonConfig(CommonConfig):
    """The ``common`` group of commands that decode or score with trained models."""

    map_weights: bool = option(
        True,
        "let weights stay in their safetensors files, which are mapped into memory, if device and dtype allow: needs "
        "less memory, and several processes share it; false reads files as a whole",
    )


@dataclass
class TrainCommonConfig(CommonConfig):
    """The ``common`` group of ``seqgen-train``: the keys of every command, and those that only training has."""

    seed: int = option(1, "seed of initial weights, data order, dropout and everything else that is random", minimum=0)
    bf16: bool = option(False, "compute in bfloat16 (autocast); weights stay in float32")
    fp16: bool = option(False, "compute in float16 (autocast) with loss scaling; weights stay in float32")
    log_interval: int = option(50, "number of updates between two progress lines and log records", minimum=1)
    log_format: str = option("lines", "how the progress of training is shown", choices=("lines", "none"))
    tensorboard: bool = option(True, "write TensorBoard event files to the run folder")
    user_files: dict[str, str] = option({}, "file that registered each of your own components; recorded by training")
