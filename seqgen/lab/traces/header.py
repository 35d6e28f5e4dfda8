"""The first line of a trace, with the settings of the decode; fields of untrusted JSON objects, with types."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from seqgen.generation.finished import Ranking
from seqgen.generation.rules import RULES

T = TypeVar("T")
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

    def of_type(self, name: str, kind: type[T]) -> T:
        """A field of a type; true and false are not numbers."""
        value = self.values.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"{self.where} has {'no' if name not in self.values else 'a wrong'} {name}")
        return value

    def text(self, name: str) -> str:
        """A text."""
        return self.of_type(name, str)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of some texts."""
        value = self.text(name)
        self._check(value in choices, name)
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        return self.of_type(name, bool)

    def integer(self, name: str, lowest: int = 0) -> int:
        """An integer."""
        value = self.of_type(name, int)
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


FORMAT, VERSION = "seqgen-trace", 1
"""The first two values of a trace."""

_MOST_BEAMS = 100_000


@dataclass(frozen=True)
class TraceHeader:
    """The settings of a traced decode.

    Attributes:
        seqgen: version of the program.
        models: names of the models.
        members: number of members of the ensemble.
        search: class name of the search strategy.
        rules: name of the rules.
        beam: beams of each sentence.
        nbest: length of the n-best lists.
        dtype: dtype of scores.
        ranking: how cumulative scores become scores of hypotheses.
        early_stopping: see ``BestFinished``.
        seed: the seed of a random strategy; ``None`` for another one.
        processors: class names of the logits processors.
        recorded: the optional parts that were recorded.
        candidates: number of candidates kept besides those that survive; 0 for all.
    """

    seqgen: str
    models: Sequence[str]
    members: int
    search: str
    rules: str
    beam: int
    nbest: int
    dtype: str
    ranking: Ranking
    early_stopping: str
    seed: int | None
    processors: Sequence[str]
    recorded: Sequence[str]
    candidates: int

    def record(self) -> dict[str, Any]:
        """The header as a JSON object."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def of(cls, value: Any) -> TraceHeader:
        """Read a JSON object.

        Raises:
            ValueError: a field is missing or wrong.
        """
        fields = Fields(value, "its first line")
        ranking = Fields(value.get("ranking"), "the ranking")
        beam = fields.integer("beam", 1)
        if beam > _MOST_BEAMS:
            raise ValueError(f"its first line has {beam} beams")
        return cls(
            seqgen=fields.text("seqgen"),
            models=fields.texts("models"),
            members=fields.integer("members", 1),
            search=fields.text("search"),
            rules=fields.choice("rules", list(RULES)),
            beam=beam,
            nbest=fields.integer("nbest", 1),
            dtype=fields.choice("dtype", ["float32", "float64"]),
            ranking=Ranking(
                ranking.flag("normalize"),
                ranking.number("len_penalty"),
                ranking.choice("kind", ["power", "wu"]),
                ranking.number("coverage"),
            ),
            early_stopping=fields.choice("early_stopping", ["true", "false", "never"]),
            seed=fields.integer("seed") if value.get("seed") is not None else None,
            processors=fields.texts("processors"),
            recorded=fields.texts("recorded"),
            candidates=fields.integer("candidates"),
        )

    @property
    def digits(self) -> int:
        """Significant digits of scores, which suffice to read the same number again."""
        return 17 if self.dtype == "float64" else 9
