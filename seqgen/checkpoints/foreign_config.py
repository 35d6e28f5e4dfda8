"""The configuration of another toolkit's checkpoint, whose values are checked when they are read."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from seqgen.config import TrainConfig
from seqgen.config.values import from_dict
from seqgen.errors import CheckpointError, ConfigError, shown

LARGEST = 2**31 - 1
"""The largest whole number that a file may have; no size or count of a model is larger."""

V = TypeVar("V", bool, int, float, str)

_WANTED: dict[type, str] = {bool: "true or false", float: "a number", str: "a text"}


@dataclass(frozen=True)
class ForeignConfig:
    """The keys and values of a file; a value that is ``null`` counts as not given.

    Attributes:
        path: the file, for messages.
        values: its content.
        asked: the keys that were asked for.
    """

    path: Path
    values: Mapping[str, Any]
    asked: set[str] = field(default_factory=set)

    def get(self, name: str, default: V, minimum: int = 0) -> V:
        """A value of the type of its default: true or false, a whole number, a number or a text.

        Args:
            name: the key.
            default: the value if the key is missing.
            minimum: the smallest whole number that is allowed.

        Raises:
            CheckpointError: it is of another type, too small or too large.
        """
        value: Any = self.value(name, default)
        kind: Any = type(default)
        if kind is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
            value = float(value)
        elif type(value) is not kind or kind is float:
            raise self.wrong(name, value, _WANTED.get(kind, f"a whole number of at least {minimum}"))
        elif kind is int and not minimum <= value <= LARGEST:
            limit = f"least {minimum}" if value < minimum else f"most {LARGEST}"
            raise self.wrong(name, value, f"a whole number of at {limit}")
        result: V = value
        return result

    def value(self, name: str, default: Any = None) -> Any:
        """A value of any type."""
        self.asked.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def one_of(self, name: str, supported: Sequence[V], default: V | None = None) -> V:
        """A value that must be one of those that are supported.

        Args:
            name: the key.
            supported: the values, all of one type.
            default: the value if the key is missing; if not given, the key is required.

        Raises:
            CheckpointError: it is another one.
        """
        value = self.get(name, type(supported[0])() if default is None else default)
        if value not in supported:
            wanted = " or ".join(map(str, supported))
            raise CheckpointError(f"{self.path}: {name}={shown(value)} is not supported, only {wanted}")
        return value

    def refuse(self, keys: Collection[str], what: str) -> None:
        """Refuse keys that change the computation and are not supported.

        Args:
            keys: the keys, which must be missing or off.
            what: the architecture, for the message.

        Raises:
            CheckpointError: a key is set.
        """
        for key in keys:
            if value := self.value(key):
                raise CheckpointError(f"{self.path}: {key}={shown(value)} is not supported for a {what}")

    def model(self, values: Mapping[str, Any]) -> Any:
        """The configuration of the model with some values, which are checked.

        Args:
            values: the values, and the name of the model as ``_name``.

        Raises:
            CheckpointError: a value is out of range.
        """
        try:
            cfg = from_dict(TrainConfig, {"model": dict(values)}, str(self.path)).model
            if hasattr(cfg, "check"):
                cfg.check()
        except ConfigError as error:
            message = str(error).removeprefix(f"{self.path}: ").replace("model.", "")
            raise CheckpointError(f"{self.path}: {message}") from None
        return cfg

    def wrong(self, name: str, value: Any, wanted: str) -> CheckpointError:
        """The error that a value is not of the wanted type."""
        return CheckpointError(f"{self.path}: {name} is {shown(value)}, not {wanted}")
