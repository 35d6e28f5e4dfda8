"""The comparison of systems: scores, tests, and the sentences that changed most, as text, page and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seqgen.addons.compare.document import table_text
from seqgen.addons.compare.significance import LEVEL, Measure, System, Tested, measure, score_and_test, seed_of
from seqgen.extend import Texts, render_template

VERSION = 1
"""Version of the JSON form."""


def changes(first: System, other: System, texts: Texts, chrf: Measure, count: int) -> list[dict[str, Any]]:
    """The sentences that changed most, in either direction.

    Args:
        first: the first system.
        other: the other one.
        texts: references and sources.
        chrf: the metric; unlike BLEU, chrF is defined for short sentences.
        count: maximum number of sentences.

    Returns:
        Those with the largest differences first, in their JSON form; equal outputs are left out.
    """
    scores = list(zip(*(chrf.scores(system.hypotheses) for system in (first, other)), strict=True))
    found: list[dict[str, Any]] = [
        {
            "line": number + 1,
            "chrf": list(scores[number]),
            "source": texts.sources[number] if texts.sources else None,
            "references": [text[number] for text in texts.every_reference],
            "hypotheses": [before, after],
        }
        for number, (before, after) in enumerate(zip(first.hypotheses, other.hypotheses, strict=True))
        if before != after
    ]
    return sorted(found, key=lambda change: -abs(change["chrf"][1] - change["chrf"][0]))[:count]


@dataclass(frozen=True)
class Options:
    """The options of a comparison.

    Attributes:
        metrics: names of the metrics.
        bootstrap: whether to compute intervals, and the paired bootstrap test.
        randomization: whether to make the approximate randomization test too.
        seed: the seed; 0 for that of ``significance.seed_of``.
        examples: number of changed sentences for each system.
    """

    metrics: Sequence[str]
    bootstrap: bool = True
    randomization: bool = True
    seed: int = 1
    examples: int = 10


@dataclass
class Comparison:
    """Systems with their scores.

    Attributes:
        systems: the systems; the others are compared with the first one.
        texts: references, sources and settings.
        options: what was computed.
        measures: the metrics by name.
        results: for each metric, the result of each system.
        changed: for each system after the first, the sentences that changed most.
    """

    systems: list[System]
    texts: Texts
    options: Options
    measures: dict[str, Measure]
    results: dict[str, list[Tested]]
    changed: list[list[dict[str, Any]]] = field(default_factory=list)

    def verdict(self, metric: str, number: int) -> str:
        """Compare a system with the first one.

        Args:
            metric: the metric.
            number: the system's number, from 0.

        Returns:
            ``same`` if all sentences have the same scores; ``better`` or ``worse`` if the p-values of all tests are
            below ``LEVEL``; ``unclear`` if one is not; empty without tests and for the first system.
        """
        first, tested = self.results[metric][0], self.results[metric][number]
        values = [value for value in (tested.p_bootstrap, tested.p_randomization) if value is not None]
        if tested.same or not values:
            return "same" if tested.same else ""
        if any(value >= LEVEL for value in values) or tested.score == first.score:
            return "unclear"
        return "better" if (tested.score > first.score) != self.measures[metric].lower_is_better else "worse"

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
                    "signature": self.measures[metric].signature,
                    "lower_is_better": self.measures[metric].lower_is_better,
                    "systems": [
                        {
                            **vars(tested),
                            "difference": tested.score - results[0].score,
                            "verdict": self.verdict(metric, number) or None,
                        }
                        for number, tested in enumerate(results)
                    ],
                }
                for metric, results in self.results.items()
            },
            "changed": [
                {"system": name, "sentences": found} for name, found in zip(names[1:], self.changed, strict=False)
            ],
        }


def compare(systems: Sequence[System], texts: Texts, options: Options) -> Comparison:
    """Compare systems.

    Args:
        systems: at least one; the others are compared with the first one.
        texts: references, sources and settings; ``hypotheses`` is not read.
        options: what to compute.

    Returns:
        The comparison.

    Raises:
        ConfigError: a metric does not exist or cannot be computed, there are too many sentences, or the environment's
            seed is wrong.
    """
    systems, options = list(systems), replace(options, seed=seed_of(options.seed))
    texts = replace(texts, hypotheses=systems[0].hypotheses)
    measures = {name: measure(name, texts) for name in options.metrics}
    results = score_and_test(systems, measures, options.seed, options.bootstrap, options.randomization)
    found = Comparison(systems, texts, options, measures, results)
    if options.examples:
        chrf = measures.get("chrf") or measure("chrf", texts)
        found.changed = [changes(systems[0], other, texts, chrf, options.examples) for other in systems[1:]]
    return found


SCORES = ("", "score", "95% interval", "difference", "p boot.", "p rand.")
"""The columns of scores."""
_SIGNS = {"better": "▲", "worse": "▼", "same": "=", "unclear": "", "": ""}


def page_of_systems(comparison: Comparison) -> str:
    """The comparison as a page, with all lines.

    Args:
        comparison: what ``compare`` returned.
    """
    every = {"chrf": comparison.measures.get("chrf") or measure("chrf", comparison.texts), **comparison.measures}
    measures = {name: one for name, one in every.items() if one.of_sentences}
    texts = [system.hypotheses for system in comparison.systems]
    values = {
        "comparison": comparison,
        "explanation": explanation(comparison),
        "cells": _score_cells(comparison),
        "measures": measures,
        "scores": {name: [one.scores(text) for text in texts] for name, one in measures.items()},
        "lines": list(zip(*comparison.texts.every_reference, *texts, strict=True)),
    }
    return render_template(__package__, "systems.html", **values)


def _score_cells(comparison: Comparison) -> list[list[str]]:
    """The head and the rows of the table of scores, without empty columns."""
    rows = list(_score_rows(comparison))
    columns = [place for place, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    return [[row[place] for place in columns] for row in (SCORES, *rows)]


def text_report(comparison: Comparison) -> str:
    """The comparison as text.

    Args:
        comparison: what ``compare`` returned.

    Returns:
        Lines of at most 80 columns, except for sentences.
    """
    head, *rows = _score_cells(comparison)
    table = table_text(head, rows, whole=range(1, len(SCORES)), gap=1)
    values = {"comparison": comparison, "table": table, "explanation": explanation(comparison)}
    return "\n".join(map(str.rstrip, render_template(__package__, "systems.txt", **values).split("\n"))).rstrip()


def explanation(comparison: Comparison) -> str:
    """The meaning of the columns of the scores; empty without tests."""
    if not comparison.options.bootstrap:
        return ""
    if len(comparison.systems) == 1:
        return f"95% intervals from bootstrap resampling, seed {comparison.options.seed}."
    return (
        f"▲ better, ▼ worse than {comparison.systems[0].name} with p < {LEVEL} in each test made; "
        f"= equal sentence scores. Seed {comparison.options.seed}."
    )


def _score_rows(comparison: Comparison) -> Iterable[Sequence[str]]:
    """For each metric a row with its name, and one for each system: the cells of ``SCORES``."""
    for metric, results in comparison.results.items():
        title = f"{metric} (lower is better)" if comparison.measures[metric].lower_is_better else metric
        yield [title, *[""] * (len(SCORES) - 1)]
        for number, tested in enumerate(results):
            sign = _SIGNS[comparison.verdict(metric, number)]
            difference = f"{tested.score - results[0].score:+.2f} {sign:1}" if number else ""
            interval = ""
            if tested.mean is not None and tested.interval is not None:
                interval = f"{tested.mean - tested.interval:.2f} - {tested.mean + tested.interval:.2f}"
            p_values = ["" if p is None else f"{p:.4f}" for p in (tested.p_bootstrap, tested.p_randomization)]
            yield f"  {comparison.systems[number].name}", f"{tested.score:.2f}", interval, difference, *p_values
