"""Scored settings of ``seqgen-tune``, and the report about them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from seqgen.errors import ConfigError
from seqgen.lab.tuning.decodes import Decodes
from seqgen.lab.tuning.space import Dimension, Point, arguments
from seqgen.metrics import TextScore, score_with_interval
from seqgen.system.devices import memory_errors

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


@dataclass(frozen=True)
class Metric:
    """How outputs are scored; see ``score_with_interval``."""

    name: str
    lowercase: bool
    tokenize: str
    references: Sequence[str]

    def __call__(self, outputs: Sequence[str]) -> tuple[TextScore, float | None]:
        """The score of outputs, and half the width of its confidence interval."""
        return score_with_interval(self.name, outputs, self.references, self.lowercase, self.tokenize)


class Trials:
    """Scores settings, each once.

    Args:
        space: the dimensions of the search.
        settings: turns arguments into the settings of ``Translator.prepare``.
        decodes: decodes the validation set.
        metric: scores outputs.
    """

    def __init__(
        self,
        space: Sequence[Dimension],
        settings: Callable[[Sequence[str]], Mapping[str, Any]],
        decodes: Decodes,
        metric: Metric,
    ):
        self.space, self.settings, self.decodes, self.metric = space, settings, decodes, metric
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
            return -inf
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
            return -inf
        score, interval = self.metric(outputs)
        self.trials[key] = trial = Trial(setting, score.value, interval, score.signature)
        how += f", {time.perf_counter() - start:.1f} s"
        logger.info(f"[{len(self.trials)}] {trial.name}: {self.metric.name} {trial} ({how})")
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
        head = f"{self.metric.name:>14}  setting"
        return "\n".join([head, *shown, *([f"... and {left} settings with lower scores"] if left > 0 else [])])
