"""Significance of differences between systems: sacreBLEU's confidence intervals and paired tests.

A metric has the form that these tests need: statistics of each sentence, computed once for each text.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from seqgen.extend import ConfigError, Texts, TextScore, corpus_metric

SEED = "SACREBLEU_SEED"
"""The environment variable from which sacreBLEU's tests read their seed."""
DEFAULT_SEED = 12345
MAX_SENTENCES = 10_000
"""Maximum number of sentences that are tested: sacreBLEU holds the statistics of all resamples, here 1 GB, at once."""
LEVEL = 0.05
"""p-values below are marked as significant."""


class System(NamedTuple):
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


def score_and_test(
    systems: Sequence[System],
    measures: Mapping[str, Measure],
    seed: int,
    bootstrap: bool = True,
    randomization: bool = True,
) -> dict[str, list[Tested]]:
    """Score systems, and test them against the first one.

    Args:
        systems: at least one.
        measures: the metrics by name; those of whole texts are not tested.
        seed: a positive seed.
        bootstrap: whether to make the paired bootstrap test.
        randomization: whether to make the approximate randomization test in addition.

    Returns:
        For each metric, the result of each system.

    Raises:
        ConfigError: there are too many sentences.
    """
    first, tested = systems[0].hypotheses, {name: one for name, one in measures.items() if one.of_sentences}
    tests = dict[str, Mapping[str, list[Any]]]()
    if bootstrap and tested:
        if len(first) > MAX_SENTENCES:
            raise ConfigError(
                f"the tests take at most {MAX_SENTENCES} lines, because they hold all resamples in memory, but there "
                f"are {len(first)}; set compare.tests=none, or score a part of the lines"
            )
        tests["bs"] = _paired(systems, tested, seed, "bs")
        if randomization and len(systems) > 1:
            tests["ar"] = _paired(systems, tested, seed, "ar")
    found: dict[str, list[Tested]] = {}
    for name, item in measures.items():
        found[name] = []
        for number, system in enumerate(systems):
            same = number > 0 and item.same(first, system.hypotheses)
            results = {test: of_metric[name][number] for test, of_metric in tests.items() if name in of_metric}
            # sacreBLEU's numbers can be numpy's, of 32 bits for chrF, which cannot be written as JSON
            p_values = {test: float(one.p_value) for test, one in results.items() if number and not same}
            mean, interval = (float(results["bs"].mean), float(results["bs"].ci)) if results else (None, None)
            score = item.score(system.hypotheses)
            found[name].append(Tested(score, same, mean, interval, p_values.get("bs"), p_values.get("ar")))
    return found


def _paired(systems: Sequence[System], measures: Mapping[str, Measure], seed: int, test: str) -> dict[str, list[Any]]:
    from sacrebleu.significance import PairedTest  # slow to import

    metrics: Any = measures  # with the methods of sacreBLEU's metrics that the tests call
    before = os.environ.get(SEED)
    os.environ[SEED] = str(seed)
    try:
        _, results = PairedTest([*systems], metrics, None, test)()
    finally:
        del os.environ[SEED]
        if before is not None:
            os.environ[SEED] = before
    return {name: results[name] for name in measures}


class Measure:
    """A metric with the four methods that ``sacrebleu.significance.PairedTest`` calls.

    Args:
        name: the metric's name, under which the tests return its results.
        metric: the metric of sacreBLEU, with its references; or another object with these methods.
        lower_is_better: whether it is an error rate.
        of_sentences: whether there are statistics of sentences, without which it cannot be tested.
    """

    def __init__(self, name: str, metric: Any, lower_is_better: bool = False, of_sentences: bool = True):
        self.name, self.lower_is_better, self.of_sentences = name, lower_is_better, of_sentences
        self._metric = metric
        self._statistics = functools.cache(lambda texts: list(metric._extract_corpus_statistics(list(texts), None)))

    def same(self, hypotheses: Sequence[str], others: Sequence[str]) -> bool:
        """True if the statistics of two texts are equal, as with equal texts."""
        return self._statistics(tuple(hypotheses)) == self._statistics(tuple(others))

    def score(self, hypotheses: Sequence[str]) -> float:
        """The score of a text, a line for each sentence."""
        return float(self._metric._aggregate_and_compute(self._statistics(tuple(hypotheses))).score)

    def scores(self, hypotheses: Sequence[str]) -> list[float]:
        """The score of each sentence; BLEU counts the n-grams that a short one can have, as in ``sentence_bleu``."""
        metric = copy.copy(self._metric)
        metric.effective_order = True
        return [float(metric._aggregate_and_compute([one]).score) for one in self._statistics(tuple(hypotheses))]

    @property
    def signature(self) -> str:
        """sacreBLEU's signature; the references must have been read."""
        return str(self._metric.get_signature())

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: None) -> list[Any]:
        return self._statistics(tuple(hypotheses))

    def _aggregate_and_compute(self, statistics: Any) -> Any:
        score = self._metric._aggregate_and_compute(statistics)
        score.name = self.name
        return score

    def _compute_score_from_stats(self, statistics: Any) -> Any:
        return self._metric._compute_score_from_stats(statistics)

    def get_signature(self) -> Any:
        """An unused signature, to which the tests add their settings; these are reported elsewhere."""
        from sacrebleu.metrics.base import Signature  # slow to import

        return Signature({"num_refs": 1})


class OtherMetric:
    """A metric that is not sacreBLEU's, with the methods of one: a mean over sentences, or a score of whole texts.

    Args:
        scored: computes the score of a text with the values of its sentences, if there are some, and the signature.
    """

    def __init__(self, scored: Callable[[tuple[str, ...]], TextScore]):
        self._scored = scored
        self._text = ""

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: None) -> Sequence[Any]:
        """Each sentence's value and weight; without values, the text."""
        score = self._scored(tuple(hypotheses))
        self._text = score.signature
        return [[value, 1.0] for value in score.sentences] or hypotheses

    def _aggregate_and_compute(self, statistics: Any) -> Any:
        if isinstance(statistics[0], str):
            return self._compute_score_from_stats([self._scored(tuple(statistics)).value, 1.0])
        return self._compute_score_from_stats([sum(column) for column in zip(*statistics, strict=True)])

    def _compute_score_from_stats(self, statistics: Any) -> Any:
        from sacrebleu.metrics.base import Score  # slow to import

        return Score("", float(statistics[0]) / float(statistics[1]))

    def get_signature(self) -> str:
        """The metric's signature."""
        return self._text


def measure(name: str, texts: Texts) -> Measure:
    """Make the measure of a metric.

    Args:
        name: the metric.
        texts: its references, sources and settings; ``hypotheses`` is scored, which shows whether the metric gives
            values of sentences.

    Raises:
        ConfigError: the metric does not exist, or its package is not installed.
    """
    metric = corpus_metric(name)
    if metric.sacrebleu is not None:
        return Measure(name, metric.sacrebleu(texts), metric.lower_is_better)
    scored = functools.cache(lambda hypotheses: metric.score(replace(texts, hypotheses=list(hypotheses))))
    of_sentences = bool(scored(tuple(texts.hypotheses)).sentences)
    return Measure(name, OtherMetric(scored), metric.lower_is_better, of_sentences)
