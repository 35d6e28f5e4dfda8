"""Reads the fields of a JSON object from an untrusted file, each with its type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_LARGEST = 2**62
"""Larger integers do not fit into a tensor."""
_HIGHEST = 1e30
"""Larger numbers, positive or negative, are no scores or weights."""


class Fields:
    """The fields of a JSON object.

    Args:
        values: the object.
        where: what the object is, for messages.

    Raises:
        ValueError: it is not an object. The methods raise it for a field that is missing or wrong.
    """

    def __init__(self, values: Any, where: str = "the record"):
        if not isinstance(values, dict):
            raise ValueError(f"{where} is not an object")
        self.values: dict[str, Any] = values
        self.where = where

    def of_type(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """A field of a type; true and false are not numbers."""
        value = self.values.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"{self.where} has {'no' if name not in self.values else 'a wrong'} {name}")
        return value

    def text(self, name: str) -> str:
        """A text."""
        value: str = self.of_type(name, str)
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of some texts."""
        value = self.text(name)
        self._check(value in choices, name)
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value: bool = self.of_type(name, bool)
        return value

    def integer(self, name: str, lowest: int = 0) -> int:
        """An integer."""
        value: int = self.of_type(name, int)
        self._check(lowest <= value < _LARGEST, name)
        return value

    def number(self, name: str) -> float:
        """A number."""
        return self._number(self._given(name), name)

    def score(self, name: str) -> float:
        """A number; null stands for minus infinity."""
        return self._score(self._given(name), name)

    def list(self, name: str, length: int | None = None) -> list[Any]:
        """A list, of a given length."""
        value: list[Any] = self.of_type(name, list)
        self._check(length is None or len(value) == length, name)
        return value

    def scores(self, name: str, length: int | None = None) -> Sequence[float]:
        """A list of numbers; null stands for minus infinity."""
        return [self._score(value, name) for value in self.list(name, length)]

    def integers(self, name: str, length: int | None = None, end: int = _LARGEST, lowest: int = 0) -> Sequence[int]:
        """A list of integers from ``lowest`` to below ``end``."""
        values = self.list(name, length)
        self._check(all(type(value) is int and lowest <= value < end for value in values), name)
        return values

    def texts(self, name: str) -> Sequence[str]:
        """A list of texts."""
        values = self.list(name)
        self._check(all(isinstance(value, str) for value in values), name)
        return values

    def rows(self, name: str, length: int, width: int) -> Sequence[Sequence[float]]:
        """A list of lists of ``width`` numbers."""
        rows = self.score_rows(name, length, width)
        self._check(all(math.isfinite(value) for row in rows for value in row), name)
        return rows

    def score_rows(self, name: str, length: int | None, width: int) -> Sequence[Sequence[float]]:
        """A list of lists of ``width`` numbers; null stands for minus infinity."""
        return [Fields({name: row}, self.where).scores(name, width) for row in self.list(name, length)]

    def pairs(self, name: str, end: int) -> Sequence[tuple[int, float]]:
        """A list of pairs of an integer below ``end`` and a number."""
        pairs = self.list(name)
        self._check(all(isinstance(pair, list) and len(pair) == 2 for pair in pairs), name)
        self._check(all(type(first) is int and 0 <= first < end for first, _ in pairs), name)
        return [(first, self._number(second, name)) for first, second in pairs]

    def texts_by_number(self, name: str) -> dict[str, str]:
        """An object whose keys are integers, with texts."""
        values: dict[str, str] = self.of_type(name, dict)
        valid = (key.isascii() and key.isdigit() and isinstance(text, str) for key, text in values.items())
        self._check(all(valid), name)
        return values

    def _given(self, name: str) -> Any:
        if name not in self.values:
            raise ValueError(f"{self.where} has no {name}")
        return self.values[name]

    def _score(self, value: Any, name: str) -> float:
        return -math.inf if value is None else self._number(value, name)

    def _number(self, value: Any, name: str) -> float:
        self._check(isinstance(value, int | float) and not isinstance(value, bool), name)
        self._check(abs(value) <= _HIGHEST, name)  # false for NaN, too
        return float(value)

    def _check(self, valid: bool, name: str) -> None:
        if not valid:
            raise ValueError(f"{self.where} has a wrong {name}")
