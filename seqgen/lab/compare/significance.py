"""Whether the scores of systems differ by more than chance: sacreBLEU's confidence intervals and paired tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from seqgen.errors import ConfigError
from seqgen.lab.compare.measures import Measure, WholeTextMeasure

SEED = "SACREBLEU_SEED"
"""The environment variable from which sacreBLEU's tests read their seed."""
DEFAULT_SEED = 12345
MAX_SENTENCES = 10_000
"""Maximum number of sentences that are tested: sacreBLEU holds the statistics of all resamples, here 1 GB, at once."""
LEVEL = 0.05
"""p-values below are marked as significant."""


@dataclass(frozen=True)
class System:
    """The outputs of a system.

    Attributes:
        name: how it is called in reports.
        hypotheses: a line for each sentence.
    """

    name: str
    hypotheses: list[str]


@dataclass(frozen=True)
class Tested:
    """The score of a system by one metric.

    Attributes:
        score: the score.
        mean: the mean score of the bootstrap resamples; ``None`` without tests.
        interval: half the width of the 95% confidence interval, whose centre is ``mean``.
        same: whether each sentence has the score that it has with the first system; not for that system itself.
        p_bootstrap: p-value of the paired bootstrap test against the first system (Koehn 2004); ``None`` for the first
            system and for the ``same`` scores, where sacreBLEU's value has no meaning.
        p_randomization: that of the approximate randomization test (Riezler and Maxwell 2005).
    """

    score: float
    same: bool = False
    mean: float | None = None
    interval: float | None = None
    p_bootstrap: float | None = None
    p_randomization: float | None = None


def seed_of(given: int) -> int:
    """The seed of the tests.

    Args:
        given: the user's seed; 0 for that of ``SACREBLEU_SEED``, or else ``DEFAULT_SEED``.

    Raises:
        ConfigError: the environment variable is not a positive number. With 0, sacreBLEU's systems would be resampled
            with different seeds.
    """
    text = os.environ.get(SEED, str(DEFAULT_SEED))
    if given:
        return given
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ConfigError(f"the environment variable {SEED} is {text[:40]!r}; set it to a number above 0, or unset it")
    return int(text)


def paired_tests(
    systems: Sequence[System], measures: Mapping[str, Measure], seed: int, randomization: bool = True
) -> dict[str, list[Tested]]:
    """Test systems against the first one.

    Args:
        systems: at least one.
        measures: the metrics by name.
        seed: a positive seed.
        randomization: whether to make the approximate randomization test in addition to the bootstrap.

    Returns:
        For each metric, the result of each system.

    Raises:
        ConfigError: there are too many sentences.
    """
    if len(systems[0].hypotheses) > MAX_SENTENCES:
        raise ConfigError(
            f"the tests take at most {MAX_SENTENCES} lines, because they hold all resamples in memory, but there are "
            f"{len(systems[0].hypotheses)}; give compare.tests=none, or score a part of the lines"
        )
    bootstrap = _paired(systems, measures, seed, "bs")
    trials = _paired(systems, measures, seed, "ar") if randomization and len(systems) > 1 else None
    found: dict[str, list[Tested]] = {}
    for name, plain in untested(systems, measures).items():
        found[name] = []
        for number, own in enumerate(plain):
            result, other = bootstrap[name][number], trials[name][number] if trials else None
            # sacreBLEU's numbers can be numpy's, of 32 bits for chrF, which cannot be written as JSON
            found[name].append(
                Tested(
                    float(result.score),
                    own.same,
                    float(result.mean),
                    float(result.ci),
                    None if own.same or result.p_value is None else float(result.p_value),
                    None if own.same or other is None or other.p_value is None else float(other.p_value),
                )
            )
    return found


def untested(systems: Sequence[System], measures: Mapping[str, Measure | WholeTextMeasure]) -> dict[str, list[Tested]]:
    """The scores of systems without intervals and tests."""
    first, *others = systems
    return {
        name: [
            Tested(item.score(first.hypotheses)),
            *(Tested(item.score(other.hypotheses), item.same(first.hypotheses, other.hypotheses)) for other in others),
        ]
        for name, item in measures.items()
    }


def _paired(systems: Sequence[System], measures: Mapping[str, Measure], seed: int, test: str) -> dict[str, list[Any]]:
    from sacrebleu.significance import PairedTest  # slow to import

    named: list[tuple[str, Sequence[str]]] = [(system.name, system.hypotheses) for system in systems]
    metrics: Any = measures  # with the methods of sacreBLEU's metrics that the tests call
    with _seeded(seed):
        _, results = PairedTest(named, metrics, None, test)()
    return {name: results[name] for name in measures}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    before = os.environ.get(SEED)
    os.environ[SEED] = str(seed)
    try:
        yield
    finally:
        del os.environ[SEED]
        if before is not None:
            os.environ[SEED] = before
