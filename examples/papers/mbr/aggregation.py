"""Minimum Bayes risk with reference aggregation (Vamvas and Sennrich 2024, "Linear-time Minimum Bayes Risk Decoding
with Reference Aggregation").

Each candidate is compared once, with the mean n-gram counts of all pseudo-references (for BLEU: DeNero et al. 2009)::

    mu(h) ~ u(h, 1/|R| * sum over r in R of counts(r))

or with the means of ``parts`` parts of the references, over which utilities are averaged. With ``finalists``, this many
of the best candidates are then compared with all references (aggregate-to-fine)::

    seqgen-generate common.user_dir=examples/papers/mbr path=runs/a input=test.en generation.beam=64
        generation.sampling=true generation.epsilon_cutoff=0.02 generation.rerank=mbr_aggregated reranker.finalists=8

Expect nearly the quality of exact minimum Bayes risk with a number of utilities that grows linearly with the beam. The
utility has to count n-grams: chrf, bleu, or your own subclass of ``NgramUtility``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from seqgen.extend import ConfigError, Matrix, NgramUtility, Utility, count_ngrams, option, register_reranker

from .exact import Mbr, MbrConfig, UtilityMatrix


@dataclass
class AggregatedConfig(MbrConfig):
    """Configuration of reference aggregation."""

    parts: int = option(1, "parts of the references that are aggregated separately", minimum=1)
    finalists: int = option(0, "number of best candidates that are compared with all references", minimum=0)


@register_reranker("mbr_aggregated", config=AggregatedConfig)
class AggregatedMbr(Mbr):
    """Reference aggregation for utilities of n-grams; the arguments are as in ``AggregatedConfig``."""

    def __init__(self, *given: Any, parts: int = 1, finalists: int = 0):
        super().__init__(*given)
        self.parts, self.finalists = parts, finalists
        if not isinstance(self.utility, NgramUtility):
            raise ConfigError("mbr_aggregated needs a utility of n-gram counts; set reranker.utility=chrf or bleu")

    def expected(self, matrix: UtilityMatrix, line: int) -> Matrix:
        """See ``Mbr.expected``. Finalists rank above all others."""
        parts = min(self.parts, len(matrix.references))
        shares = [matrix.references[start::parts] for start in range(parts)]
        found = [compare_with_mean(self.utility, matrix.candidates, share) for share in shares]
        matrix.computed += parts * len(matrix.candidates)
        means: Matrix = numpy.average(found, axis=0, weights=[len(share) for share in shares])
        if self.finalists:
            best = numpy.argsort(-means, kind="stable")[: self.finalists]
            exact = matrix[best, range(len(matrix.references))].mean(1)
            means = numpy.minimum(means, numpy.nextafter(exact.min(), -numpy.inf))
            means[best] = exact
        return means


def compare_with_mean(utility: Utility, texts: Sequence[str], references: Sequence[str]) -> Matrix:
    """Compare texts with one reference: the mean n-gram counts of all references.

    Args:
        utility: a utility of n-gram counts.
        texts: ``N`` outputs for one source.
        references: ``M`` texts; one that occurs several times counts several times.

    Returns:
        ``(N,)`` utilities.
    """
    assert isinstance(utility, NgramUtility)
    sequences = [utility.units(text) for text in (*texts, *references)]
    counted = []
    for n in range(1, utility.order + 1):
        counts = count_ngrams(sequences, n)
        of_texts, mean = counts[: len(texts)], counts[len(texts) :].mean(0)
        matches = numpy.minimum(of_texts, mean).sum(1, keepdims=True)
        counted.append((matches, of_texts.sum(1), mean.sum(keepdims=True)))
    return utility.scores(*(numpy.stack(part) for part in zip(*counted, strict=True)))[:, 0]
