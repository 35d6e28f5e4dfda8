"""The whole comparison of systems, for the text, the JSON and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seqgen.lab.compare.breakdown import Breakdown, by_agreement, by_frequency, by_length
from seqgen.lab.compare.significance import LEVEL, Measure, System, Tested, measure, paired_tests, untested
from seqgen.metrics import Texts

VERSION = 1
"""Version of the JSON form."""


@dataclass(frozen=True)
class Change:
    """A sentence of two systems.

    Attributes:
        sentence: its number, from 0.
        before: its score by the first system.
        after: its score by the other system.
    """

    sentence: int
    before: float
    after: float

    @property
    def difference(self) -> float:
        """By how much the other system's score is higher."""
        return self.after - self.before


def changes(first: System, other: System, chrf: Measure, count: int) -> list[Change]:
    """The sentences that changed most, in either direction.

    Args:
        first: the first system.
        other: the other one.
        chrf: the metric; unlike BLEU, chrF is defined for short sentences.
        count: maximum number of sentences.

    Returns:
        Those with the largest differences first; equal outputs are left out.
    """
    pairs = enumerate(zip(first.hypotheses, other.hypotheses, strict=True))
    found = [
        Change(number, chrf.score(first.hypotheses, [number]), chrf.score(other.hypotheses, [number]))
        for number, (before, after) in pairs
        if before != after
    ]
    return sorted(found, key=lambda change: -abs(change.difference))[:count]


def common_words(first: str, other: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The words of two lines, and whether each also occurs, in the same order, in the other line."""
    from difflib import SequenceMatcher

    words, others = first.split(), other.split()
    same = [False] * len(words), [False] * len(others)
    for start, place, size in SequenceMatcher(None, words, others, autojunk=False).get_matching_blocks():
        same[0][start : start + size] = same[1][place : place + size] = [True] * size
    return list(zip(words, same[0], strict=True)), list(zip(others, same[1], strict=True))


@dataclass(frozen=True)
class Options:
    """What is computed.

    Attributes:
        metrics: names of the metrics.
        bootstrap: whether to compute intervals, and the paired bootstrap test.
        randomization: whether to make the approximate randomization test too.
        seed: a positive seed.
        examples: number of changed sentences for each system.
        training: a text in which the words are counted; ``None`` for the references.
    """

    metrics: Sequence[str]
    bootstrap: bool = True
    randomization: bool = True
    seed: int = 1
    examples: int = 10
    training: Sequence[str] | None = None


@dataclass
class Comparison:
    """Systems with their scores.

    Attributes:
        systems: the systems; the others are compared with the first one.
        texts: references, sources and settings.
        options: what was computed.
        results: for each metric, the result of each system.
        signatures: sacreBLEU's signatures by metric.
        lower_is_better: the metrics that are error rates.
        breakdowns: scores of parts of the text.
        changed: for each system after the first, the sentences that changed most.
    """

    systems: list[System]
    texts: Texts
    options: Options
    results: dict[str, list[Tested]]
    signatures: dict[str, str]
    lower_is_better: list[str]
    breakdowns: list[Breakdown] = field(default_factory=list)
    changed: list[list[Change]] = field(default_factory=list)

    def verdict(self, metric: str, number: int) -> str:
        """How a system compares with the first one.

        Args:
            metric: the metric.
            number: the system's number, from 0.

        Returns:
            ``same`` if all sentences have the same scores; ``better`` or ``worse`` if the p-values of all tests are
            below ``LEVEL``; ``unclear`` if one is not; empty without tests and for the first system.
        """
        first, own = self.results[metric][0], self.results[metric][number]
        values = [value for value in (own.p_bootstrap, own.p_randomization) if value is not None]
        if own.same or not values:
            return "same" if own.same else ""
        if any(value >= LEVEL for value in values) or own.score == first.score:
            return "unclear"
        return "better" if (own.score > first.score) != (metric in self.lower_is_better) else "worse"

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        names = [system.name for system in self.systems]
        return {
            "format": "seqgen-comparison",
            "version": VERSION,
            "systems": names,
            "sentences": len(self.texts.references),
            "references": len(self.texts.every_reference),
            "seed": self.options.seed if self.options.bootstrap else None,
            "metrics": {
                metric: {
                    "signature": self.signatures[metric],
                    "lower_is_better": metric in self.lower_is_better,
                    "systems": [
                        {
                            **vars(own),
                            "difference": own.score - results[0].score,
                            "verdict": self.verdict(metric, number) or None,
                        }
                        for number, own in enumerate(results)
                    ],
                }
                for metric, results in self.results.items()
            },
            "breakdowns": {
                item.name: {"title": item.title, "unit": item.unit, "parts": [vars(part) for part in item.parts]}
                for item in self.breakdowns
            },
            "changed": [
                {"system": names[number], "sentences": [self._changed(number, change) for change in found]}
                for number, found in enumerate(self.changed, start=1)
            ],
        }

    def _changed(self, number: int, change: Change) -> dict[str, Any]:
        line = change.sentence
        return {
            "line": line + 1,
            "chrf": [change.before, change.after],
            "source": self.texts.sources[line] if self.texts.sources else None,
            "references": [text[line] for text in self.texts.every_reference],
            "hypotheses": [self.systems[0].hypotheses[line], self.systems[number].hypotheses[line]],
        }


def compare(systems: Sequence[System], texts: Texts, options: Options) -> Comparison:
    """Compare systems.

    Args:
        systems: at least one; the others are compared with the first one.
        texts: references, sources and settings; ``hypotheses`` is not read.
        options: what to compute.

    Returns:
        The comparison. It has breakdowns if there are sources.

    Raises:
        ConfigError: a metric does not exist or cannot be computed, or there are too many sentences.
    """
    systems = list(systems)
    texts = replace(texts, hypotheses=systems[0].hypotheses)
    every = {name: measure(name, texts) for name in options.metrics}
    measures = {name: item for name, item in every.items() if isinstance(item, Measure)}
    results = untested(systems, every)
    if options.bootstrap and measures:
        results |= paired_tests(systems, measures, options.seed, options.randomization)
    signatures = {name: item.signature for name, item in every.items()}
    lower = [name for name, item in every.items() if item.lower_is_better]
    found = Comparison(systems, texts, options, results, signatures, lower)
    if texts.sources:
        words = _words(texts)
        found.breakdowns.append(by_length(systems, measures, texts.sources, words))
        found.breakdowns.append(by_frequency(systems, texts.references, words, options.training))
        if len(systems) > 1:
            found.breakdowns.append(by_agreement(systems, measures))
    chrf = measures.get("chrf") or measure("chrf", texts)
    if isinstance(chrf, Measure) and options.examples:
        found.changed = [changes(systems[0], other, chrf, options.examples) for other in systems[1:]]
    return found


def _words(texts: Texts) -> Callable[[str], list[str]]:
    """Splits a line into words, with the tokenizer of BLEU."""
    from sacrebleu.metrics import BLEU  # slow to import

    tokenizer = BLEU(tokenize=texts.tokenize, lowercase=texts.lowercase)

    def words(line: str) -> list[str]:
        text: str = tokenizer._preprocess_segment(line)
        return text.split()

    return words
