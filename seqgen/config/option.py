"""Declares a configuration key: its default, help text and range."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
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
    names: Literal["", "output", "code"] = "",
) -> Any:
    """Declare a configuration field::

        dropout: float = option(0.1, "dropout probability of features", minimum=0, maximum=1)

    Args:
        default: the default; a list is copied for each instance.
        help: one line that says what the value does, with its unit.
        choices: the allowed values of a string.
        minimum: smallest allowed value of a number, or of each number in a list.
        maximum: largest allowed value, likewise.
        names: ``output`` if the value names something that is written, ``code`` if it names something that can run
            code. Both are taken from the command line only, not from ``config=FILE``.

    Returns:
        The dataclass field.
    """
    metadata = {"help": help, "choices": choices, "minimum": minimum, "maximum": maximum, "names": names}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
