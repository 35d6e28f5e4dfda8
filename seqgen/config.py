"""Typed configuration: dataclasses whose fields each have a type, a default, a help text and a range."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declare a configuration field::

        dropout: float = option(0.1, "probability of dropping a feature", minimum=0, maximum=1)

    Args:
        default: the default; a list is copied for each instance.
        help: one line that says what the value does, with its unit.
        choices: the only values allowed (of a string).
        minimum: smallest value allowed (of a number, or of each number in a list).
        maximum: largest value allowed.

    Returns:
        The dataclass field.
    """
    metadata = {"help": help, "choices": choices, "minimum": minimum, "maximum": maximum}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
