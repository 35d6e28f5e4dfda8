"""The settings that ``seqgen-tune`` compares: values of the tuned keys, two ways to search them, and their scores."""

from __future__ import annotations

import itertools
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from seqgen.config.compose import MAX_VALUES, NUMBER, sweep_values, too_many
from seqgen.errors import ConfigError
from seqgen.lab.tuning.decodes import Decodes
from seqgen.metrics import TextScore
from seqgen.system.devices import memory_errors

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


logger = logging.getLogger(__name__)

SHOWN = 20
"""Maximum number of settings in a table."""
AS_GIVEN = "(no tuned key)"


@dataclass(frozen=True)
class Trial:
    """A setting that was decoded and scored.

    Attributes:
        setting: its arguments; empty for the setting without tuned keys.
        score: its score, from 0 to 100.
        interval: half the width of the score's 95% confidence interval; ``None`` if the metric has none.
        signature: sacreBLEU's signature of the metric; empty for other metrics.
    """

    setting: list[str]
    score: float
    interval: float | None
    signature: str

    def __str__(self) -> str:
        """The score and its interval."""
        return f"{self.score:.2f}" + ("" if self.interval is None else f" ± {self.interval:.2f}")

    @property
    def name(self) -> str:
        """The setting as one text."""
        return " ".join(self.setting) or AS_GIVEN


Metric = Callable[[Sequence[str]], tuple[TextScore, float | None]]
"""Returns the score of outputs, and half the width of its confidence interval."""


class Trials:
    """Scores settings, each once.

    Args:
        space: the dimensions of the search.
        settings: turns arguments into the settings of ``Translator.prepare``.
        decodes: decodes the validation set.
        name: the name of the metric.
        metric: scores outputs.
    """

    def __init__(
        self,
        space: Sequence[Dimension],
        settings: Callable[[Sequence[str]], Mapping[str, Any]],
        decodes: Decodes,
        name: str,
        metric: Metric,
    ):
        self.space, self.settings, self.decodes, self.name, self.metric = space, settings, decodes, name, metric
        self.trials: dict[str, Trial] = {}
        self.refused: dict[Point, str] = {}

    def score(self, point: Point) -> float:
        """Score a setting. It is decoded only if no setting with the same effect was decoded before.

        Args:
            point: its values.

        Returns:
            The score; minus infinity if these values exclude each other.
        """
        if point in self.refused:
            return -math.inf
        setting, start = arguments(self.space, point), time.perf_counter()
        try:
            settings = self.settings(setting)
            key = self.decodes.key(settings)
            if key in self.trials:  # two ways to write it: the one that names its keys is shown
                known = self.trials[key]
                self.trials[key] = replace(known, setting=known.setting or setting)
                return known.score
            with memory_errors(lambda: f"with {' '.join(setting)}; choose a smaller generation.batch_size"):
                outputs, how = self.decodes.outputs(settings, setting)
        except ConfigError as error:
            self.refused[point] = str(error)
            logger.info(f"left out: {' '.join(setting) or AS_GIVEN}: {error}")
            return -math.inf
        score, interval = self.metric(outputs)
        self.trials[key] = trial = Trial(setting, score.value, interval, score.signature)
        how += f", {time.perf_counter() - start:.1f} s"
        logger.info(f"[{len(self.trials)}] {trial.name}: {self.name} {trial} ({how})")
        return trial.score

    def ranked(self) -> list[Trial]:
        """The settings, best first; of equal scores, the one that was scored first.

        Raises:
            ConfigError: so many settings were refused that there is nothing to compare.
        """
        if self.refused and len(self.trials) < 2:
            raise ConfigError(f"fewer than two settings can be decoded: {list(self.refused.values())[-1]}")
        return sorted(self.trials.values(), key=lambda trial: -trial.score)

    def table(self) -> str:
        """The settings and their scores, best first."""
        trials = self.ranked()
        shown = [f"{trial!s:>14}  {trial.name}" for trial in trials[:SHOWN]]
        left = len(trials) - SHOWN
        head = f"{self.name:>14}  setting"
        return "\n".join([head, *shown, *([f"... and {left} settings with lower scores"] if left > 0 else [])])
