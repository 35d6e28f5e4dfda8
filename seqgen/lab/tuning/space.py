"""The settings that ``seqgen-tune`` compares: the values of the tuned keys, and two ways to search among them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from seqgen.config.compose import MAX_VALUES, NUMBER, sweep_values, too_many
from seqgen.errors import ConfigError

Point: TypeAlias = tuple[str | None, ...]
"""A value of each dimension, as it is typed on the command line; ``None`` leaves the key as the user gave it."""

_LISTS = re.compile(r"\[[^\[\]]*\](,\[[^\[\]]*\])*")
_NO_BRACKETS = str.maketrans("", "", "[]")
_FORMS = "A,B,C or FIRST:LAST:STEP; lists also [A,B],[C,D] or simplex:N"


@dataclass(frozen=True)
class Dimension:
    """One number or list that is tuned.

    Attributes:
        key: the key, such as ``generation.lenpen``.
        values: the values to try.
        element: for one element of a list, its index; ``None`` for a whole value.
        start: the value with which coordinate search begins; ``None`` for the user's own.
    """

    key: str
    values: tuple[str, ...]
    element: int | None = None
    start: str | None = None


def dimensions(key: str, text: str, start: Sequence[str] | None) -> list[Dimension]:
    """Read the values of a key: ``A,B,C``, ``FIRST:LAST:STEP`` (both included), ``[A,B],[C,D]`` or ``simplex:N``.

    Args:
        key: the key.
        text: its values, as the user typed them.
        start: for a key that is a list, the elements to begin with, which say how long the list is.

    Returns:
        One dimension; for a list whose values are numbers, one for each element.

    Raises:
        ConfigError: the values cannot be read, or do not fit the key's type.
    """
    whole = text.startswith(("simplex", "["))
    if start is None and whole:
        raise ConfigError(f"tune.{key}={text}: the key is one number, not a list; give numbers as A,B,C")
    if start is not None and text.startswith("simplex"):
        return [Dimension(key, tuple(_simplex(key, text, len(start))), start=_list(start))]
    if whole and not _LISTS.fullmatch(text):
        raise ConfigError(f"tune.{key}={text} cannot be read; give {_FORMS}")
    for number in re.split("[:,]", text.translate(_NO_BRACKETS)):
        _check_number(key, number)
    values = tuple(dict.fromkeys(value.replace(" ", "") for value in sweep_values(f"tune.{key}", text)))
    if len(values) > MAX_VALUES:
        raise too_many(f"tune.{key}", text, len(values))
    if start is None or whole:
        return [Dimension(key, values, start=None if start is None else _list(start))]
    return [Dimension(key, values, element, value) for element, value in enumerate(start)]


def _check_number(key: str, text: str) -> None:
    if len(text) > 40 or not NUMBER.fullmatch(text.strip()):
        raise ConfigError(f"tune.{key}: {text[:40]!r} is not a number, and only numbers can be tuned; give {_FORMS}")


def _simplex(key: str, text: str, size: int) -> Iterator[str]:
    """All lists of multiples of 1/N that sum to 1; ``simplex:2`` of two elements: [0,1], [0.5,0.5], [1,0]."""
    found = re.fullmatch(r"simplex:([1-9]\d{0,3})", text)
    if not found:
        raise ConfigError(
            f"tune.{key}={text}: give simplex:N with N from 1 to 9999, for lists of multiples of 1/N that sum to 1"
        )
    steps = int(found[1])
    if (count := math.comb(steps + size - 1, size - 1)) > MAX_VALUES:
        raise too_many(f"tune.{key}", text, count)
    # two bars in a row of 4 + 2 places divide 4 stars among three elements: *|**|* is [1, 2, 1]
    for bars in itertools.combinations(range(steps + size - 1), size - 1):
        edges = (-1, *bars, steps + size - 1)
        shares = [right - left - 1 for left, right in itertools.pairwise(edges)]
        yield _list([f"{share / steps:.12g}" for share in shares])


def _list(items: Sequence[str]) -> str:
    return f"[{','.join(item.strip() for item in items)}]"


def arguments(space: Sequence[Dimension], point: Point) -> list[str]:
    """The ``key=value`` arguments of a point, as they are given to ``seqgen-generate``."""
    lists: dict[str, list[str]] = {}
    found: dict[str, str] = {}
    for dimension, value in zip(space, point, strict=True):
        if dimension.element is not None and value is not None:
            lists.setdefault(dimension.key, []).append(value)
            found[dimension.key] = _list(lists[dimension.key])
        elif value is not None:
            found[dimension.key] = value
    return [f"{key}={value}" for key, value in found.items()]


def start_of(space: Sequence[Dimension]) -> Point:
    """The point that the user's own settings make."""
    return tuple(dimension.start for dimension in space)


def grid(space: Sequence[Dimension]) -> Iterator[Point]:
    """All combinations of the values; those of the last dimension change fastest."""
    return itertools.product(*(dimension.values for dimension in space))


def search_coordinates(space: Sequence[Dimension], score: Callable[[Point], float], rounds: int = 0) -> Point:
    """Coordinate search: tune one dimension after the other, in rounds, until a round improves nothing.

    It finds the best point of the grid if the score is a sum of functions of one dimension each. In general it finds a
    point that no change of a single dimension improves.

    Args:
        space: the dimensions.
        score: the score of a point, to be maximized; called again for points that were scored before.
        rounds: maximum number of rounds; 0 for no maximum.

    Returns:
        The best point.
    """
    best = start_of(space)
    highest = score(best)
    for _ in range(rounds) if rounds else itertools.count():
        before = best
        for index, dimension in enumerate(space):
            for value in dimension.values:
                point = (*best[:index], value, *best[index + 1 :])
                if (found := score(point)) > highest:
                    best, highest = point, found
        if best == before:
            break
    return best
