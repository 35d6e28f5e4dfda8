"""The settings that ``seqgen-tune`` compares: values of the tuned keys, and the scores of their outputs."""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from seqgen import Translator
from seqgen.config import ResolvedSettings, sweep_values
from seqgen.extend import ConfigError, TextScore

logger = logging.getLogger(__name__)

Setting: TypeAlias = tuple[str, ...]
"""The ``key=value`` arguments of the tuned keys; empty for the setting without tuned keys."""


MAX_LISTS = 10_000
"""Maximum number of lists that ``simplex:N`` stands for."""


def arguments_of(key: str, text: str, models: int) -> list[str]:
    """The ``key=value`` arguments of a tuned key.

    Args:
        key: the key, such as ``generation.length_penalty``.
        text: its values: ``A,B,C``, ``FIRST:LAST:STEP`` (both included), ``[A,B],[C,D]`` or ``simplex:N``.
        models: number of models, and of the elements of each list of ``simplex:N``.

    Raises:
        ConfigError: the values cannot be read, or there are too many.
    """
    if text.startswith("simplex"):
        values = _simplex(key, text, models)
    else:
        values = [value.replace(" ", "") for value in sweep_values(f"tune.{key}", text)]
    return [f"{key}={value}" for value in dict.fromkeys(values)]


def _simplex(key: str, text: str, size: int) -> list[str]:
    """All lists of multiples of 1/N that sum to 1; ``simplex:2`` of two elements: [0,1], [0.5,0.5], [1,0]."""
    found = re.fullmatch(r"simplex:([1-9]\d{0,3})", text)
    steps = int(found[1]) if found else 0
    if not steps or math.comb(steps + size - 1, size - 1) > MAX_LISTS:
        raise ConfigError(
            f"tune.{key}={text}: give simplex:N, for the lists of multiples of 1/N that sum to 1, with an N above 0 "
            f"and at most {MAX_LISTS} lists"
        )
    shares = itertools.product(range(steps + 1), repeat=size - 1)
    lists = [(*each, steps - sum(each)) for each in shares if sum(each) <= steps]
    return [f"[{','.join(f'{share / steps:.12g}' for share in each)}]" for each in lists]


@dataclass(frozen=True)
class Trial:
    """A setting that was decoded and scored.

    Attributes:
        setting: its arguments.
        score: its score.
    """

    setting: Setting
    score: TextScore

    @property
    def name(self) -> str:
        """The setting as one text."""
        return " ".join(self.setting) or "(no tuned key)"


def score_settings(
    translator: Translator,
    settings: Iterable[tuple[Setting, Mapping[str, Any]]],
    lines: Sequence[str],
    prefixes: Sequence[str] | None,
    metric: Callable[[Sequence[str]], TextScore],
) -> list[Trial]:
    """Decode lines with several settings, and score the outputs. Settings with the same effect are decoded once.

    Args:
        translator: the models.
        settings: pairs of a setting and the values of all keys of the call. Values that exclude each other are left
            out, with the reason in the log.
        lines: the lines.
        prefixes: the forced beginnings of the outputs, or ``None``.
        metric: scores outputs.

    Returns:
        The settings, best first.

    Raises:
        UserError: only the setting without tuned keys can be decoded, or a line cannot be decoded.
    """
    trials, refusal = dict[ResolvedSettings, Trial](), ""
    for setting, values in settings:
        name = Trial(setting, TextScore(0.0)).name
        try:
            key = translator.resolve(values)
            if key in trials:
                continue
            outputs = [found.text for found in translator.prepare(**values).translate(lines, prefixes)]
        except ConfigError as error:
            refusal = str(error)
            logger.info(f"left out: {name}: {refusal}")
            continue
        trials[key] = Trial(setting, metric(outputs))
        logger.info(f"[{len(trials)}] {name}: {trials[key].score.value:.2f}")
    if refusal and not any(trial.setting for trial in trials.values()):
        raise ConfigError(f"none of the settings can be decoded: {refusal}")
    return sorted(trials.values(), key=lambda trial: -trial.score.value)
