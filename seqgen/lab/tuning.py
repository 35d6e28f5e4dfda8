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

from seqgen.config.compose import MAX_VALUES, sweep_values, too_many
from seqgen.config.settings import ResolvedSettings
from seqgen.errors import ConfigError
from seqgen.metrics import TextScore
from seqgen.system.devices import memory_errors
from seqgen.text.translator import Translator

Setting: TypeAlias = tuple[str, ...]
"""The ``key=value`` arguments of the tuned keys; empty for the setting without tuned keys."""


@dataclass(frozen=True)
class Dimension:
    """A key that is tuned.

    Attributes:
        key: the key, such as ``generation.lenpen``.
        values: the values to try, as they are typed on the command line.
    """

    key: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, key: str, text: str, models: int) -> Dimension:
        """Read the values of a key: ``A,B,C``, ``FIRST:LAST:STEP`` (both included), ``[A,B],[C,D]`` or ``simplex:N``.

        Args:
            key: the key.
            text: its values, as the user typed them.
            models: number of models, and of the elements of each list of ``simplex:N``.

        Raises:
            ConfigError: the values cannot be read, or there are too many.
        """
        if text.startswith("simplex"):
            return cls(key, tuple(_simplex(key, text, models)))
        values = dict.fromkeys(value.replace(" ", "") for value in sweep_values(f"tune.{key}", text))
        if len(values) > MAX_VALUES:
            raise too_many(f"tune.{key}", text, len(values))
        return cls(key, tuple(values))

    def arguments(self) -> list[str]:
        """The ``key=value`` argument of each value."""
        return [f"{self.key}={value}" for value in self.values]


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
        yield f"[{','.join(f'{share / steps:.12g}' for share in shares)}]"


def grid(space: Sequence[Dimension]) -> Iterator[Setting]:
    """The setting without tuned keys, then all combinations of the values."""
    yield ()
    yield from itertools.product(*(dimension.arguments() for dimension in space))


def search_coordinates(space: Sequence[Dimension], score: Callable[[Setting], float], rounds: int = 0) -> Setting:
    """Coordinate search: tune one key after the other, in rounds, until a round improves nothing.

    It begins with the setting without tuned keys. It finds the best setting of the grid if the score is a sum of
    functions of one key each. In general it finds a setting that no change of a single key improves.

    Args:
        space: the dimensions.
        score: the score of a setting, to be maximized; called again for settings that were scored before.
        rounds: maximum number of rounds; 0 for no maximum.

    Returns:
        The best setting.
    """
    best: dict[str, str] = {}  # the argument of each key
    highest = score(())
    for _ in range(rounds) if rounds else itertools.count():
        before = dict(best)
        for dimension in space:
            for argument in dimension.arguments():
                changed = {**best, dimension.key: argument}
                if (found := score(tuple(changed.values()))) > highest:
                    best, highest = changed, found
        if best == before:
            break
    return tuple(best.values())


logger = logging.getLogger(__name__)

SHOWN = 20
"""Maximum number of settings in a table."""
AS_GIVEN = "(no tuned key)"


@dataclass(frozen=True)
class Trial:
    """A setting that was decoded and scored.

    Attributes:
        setting: its arguments.
        score: its score, from 0 to 100.
        interval: half the width of the score's 95% confidence interval; ``None`` if the metric has none.
        signature: sacreBLEU's signature of the metric; empty for other metrics.
    """

    setting: Setting
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
    """Decodes and scores settings, each once.

    Args:
        translator: the models.
        settings: turns a setting into all settings of ``Translator.prepare``.
        lines: the lines of the validation set.
        prefixes: the forced beginnings of the outputs, or ``None``.
        name: the name of the metric.
        metric: scores outputs.
    """

    def __init__(
        self,
        translator: Translator,
        settings: Callable[[Setting], Mapping[str, Any]],
        lines: Sequence[str],
        prefixes: Sequence[str] | None,
        name: str,
        metric: Metric,
    ):
        self.translator, self.settings, self.lines, self.prefixes = translator, settings, lines, prefixes
        self.name, self.metric = name, metric
        self.trials: dict[ResolvedSettings, Trial] = {}
        self.refused: dict[Setting, str] = {}
        self._noted: set[str] = set()

    def score(self, setting: Setting) -> float:
        """Score a setting. It is decoded only if no setting with the same effect was decoded before.

        Args:
            setting: its arguments.

        Returns:
            The score; minus infinity if these values exclude each other.
        """
        if setting in self.refused:
            return -math.inf
        start = time.perf_counter()
        try:
            settings = self.settings(setting)
            key = self.translator.resolve(settings)
            if key in self.trials:  # two ways to write it: the one that names its keys is shown
                known = self.trials[key]
                self.trials[key] = replace(known, setting=known.setting or setting)
                return known.score
            with memory_errors(lambda: f"with {' '.join(setting)}; choose a smaller generation.batch_size"):
                outputs = self._outputs(settings)
        except ConfigError as error:
            self.refused[setting] = str(error)
            logger.info(f"left out: {' '.join(setting) or AS_GIVEN}: {error}")
            return -math.inf
        score, interval = self.metric(outputs)
        self.trials[key] = trial = Trial(setting, score.value, interval, score.signature)
        seconds = time.perf_counter() - start
        logger.info(f"[{len(self.trials)}] {trial.name}: {self.name} {trial} ({seconds:.1f} s)")
        return trial.score

    def _outputs(self, settings: Mapping[str, Any]) -> list[str]:
        decoding = self.translator.prepare(**settings)
        for note in decoding.notes:
            if note not in self._noted:
                self._noted.add(note)
                logger.info(note)
        return [translation.text for translation in decoding.translate(self.lines, self.prefixes)]

    def ranked(self) -> list[Trial]:
        """The settings, best first; of equal scores, the one that was scored first."""
        return sorted(self.trials.values(), key=lambda trial: -trial.score)

    def table(self) -> str:
        """The settings and their scores, best first."""
        trials = self.ranked()
        shown = [f"{trial!s:>14}  {trial.name}" for trial in trials[:SHOWN]]
        left = len(trials) - SHOWN
        head = f"{self.name:>14}  setting"
        return "\n".join([head, *shown, *([f"... and {left} settings with lower scores"] if left > 0 else [])])
