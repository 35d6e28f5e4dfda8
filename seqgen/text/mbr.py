"""Minimum Bayes risk: of several outputs, the one that is most like the others.

Kumar and Byrne 2004; with samples for candidates, Eikema and Aziz 2020. Likeness is what sacreBLEU gives a single
sentence. All pairs are compared at once, from n-grams that are counted once for each text: sacreBLEU itself would count
those of 50 samples 5,000 times, for a second a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU

UTILITIES = ("chrf", "bleu")
"""How likeness is measured: sacreBLEU's scores of one sentence, between 0 and 100."""

CHRF_ORDER, CHRF_BETA = 6, 2
BLEU_ORDER = 4

Matrix: TypeAlias = NDArray[numpy.float64]


def expected_utilities(candidates: Sequence[str], utility: str) -> list[float]:
    """The mean likeness of each candidate to all of them, itself included, each counting alike.

    A text that occurs several times among samples so counts several times, as often as the model drew it.

    Args:
        candidates: outputs for one source.
        utility: one of ``UTILITIES``; BLEU with effective order, as it is computed for single sentences.

    Returns:
        The expected utility of each; the largest is the choice.
    """
    times = Counter(candidates)
    texts = list(times)
    likeness = chrf_of_pairs(texts) if utility == "chrf" else bleu_of_pairs(texts)
    means = likeness @ numpy.array(list(times.values())) / len(candidates)
    return [float(means[texts.index(text)]) for text in candidates]


def by_expected_utility(utilities: Sequence[float]) -> list[int]:
    """The order of candidates, the best first; those alike in the order in which they come."""
    return sorted(range(len(utilities)), key=lambda index: -utilities[index])


def chrf_of_pairs(texts: Sequence[str]) -> Matrix:
    """chrF (Popović 2015) of each text with each other one as its reference, ``(N, N)``."""
    precision = recall = orders = numpy.zeros((len(texts), len(texts)))
    for matches, totals in _matches([list("".join(text.split())) for text in texts], CHRF_ORDER):
        own, reference = totals[:, None], totals[None, :]
        both = (own > 0) & (reference > 0)  # an order that a text is too short for does not count
        precision = precision + numpy.where(both, matches / numpy.maximum(own, 1), 0)
        recall = recall + numpy.where(both, matches / numpy.maximum(reference, 1), 0)
        orders = orders + both
    precision, recall = precision / numpy.maximum(orders, 1), recall / numpy.maximum(orders, 1)
    weighted = CHRF_BETA**2 * precision + recall
    score = (1 + CHRF_BETA**2) * precision * recall / numpy.where(weighted > 0, weighted, 1)
    return 100 * score


def bleu_of_pairs(texts: Sequence[str]) -> Matrix:
    """BLEU (Papineni et al. 2002) of each text with each other one as its reference, ``(N, N)``."""
    metric = BLEU(effective_order=True)
    words = [metric.tokenizer(text.rstrip()).split() for text in texts]
    counted = list(_matches(words, BLEU_ORDER))
    scores = numpy.zeros((len(texts), len(texts)))
    for i, own in enumerate(words):
        totals = [int(total[i]) for _, total in counted]
        for j, reference in enumerate(words):
            correct = [int(matches[i, j]) for matches, _ in counted]
            scores[i, j] = BLEU.compute_bleu(
                correct, totals, len(own), len(reference), smooth_method="exp", effective_order=True
            ).score
    return scores


def _matches(sequences: Sequence[Sequence[str]], order: int) -> list[tuple[Matrix, Matrix]]:
    """How many n-grams texts have in common, and how many they have, for each n up to ``order``.

    ``a a b`` and ``a b b`` have 2 unigrams in common: an ``a`` and a ``b``.

    Returns:
        For each n the common ones ``(N, N)`` and the totals ``(N,)``.
    """
    found = []
    for n in range(1, order + 1):
        counts = [Counter(zip(*(sequence[i:] for i in range(n)), strict=False)) for sequence in sequences]
        places = {ngram: place for place, ngram in enumerate(dict.fromkeys(gram for count in counts for gram in count))}
        table = numpy.zeros((len(sequences), len(places)), dtype=numpy.int32)
        for row, count in enumerate(counts):
            table[row, [places[ngram] for ngram in count]] = list(count.values())
        common = numpy.stack([numpy.minimum(row, table).sum(1) for row in table])
        found.append((common.astype(numpy.float64), table.sum(1).astype(numpy.float64)))
    return found
