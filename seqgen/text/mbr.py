"""Minimum Bayes risk: of several outputs, the one with the largest expected utility against the others.

Kumar and Byrne 2004; with samples as candidates, Eikema and Aziz 2020. The built-in utilities are sacreBLEU's scores of
single sentences. They compare all pairs at once, from n-grams that are counted once for each text: sacreBLEU itself
would count those of 50 samples 5,000 times, which takes a second for each line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU

from seqgen.config import GenerationConfig, option
from seqgen.generation.component import Component, Resources
from seqgen.generation.registered import build
from seqgen.registry import UTILITIES, register_utility

Matrix: TypeAlias = NDArray[numpy.float64]


class Utility(Component):
    """Measures how good one text is if another one is the reference; a subclass implements ``__call__``.

    One that is registered with ``@register_utility`` can be chosen by name (``generation.mbr``).
    """

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """Compare all pairs of texts.

        Args:
            texts: ``N`` distinct outputs for one source.

        Returns:
            ``(N, N)``: in row ``i`` and column ``j`` the utility of text ``i`` with text ``j`` as its reference.
        """
        raise NotImplementedError


def utility_from_config(cfg: GenerationConfig, resources: Resources) -> Utility:
    """Make the utility that ``cfg.mbr`` names.

    Raises:
        ConfigError: it is not registered.
    """
    return build(UTILITIES, cfg.mbr, Utility, cfg, resources)


def expected_utilities(candidates: Sequence[str], utility: Utility) -> list[float]:
    """The mean utility of each candidate with each of them, itself included, as the reference.

    A text that occurs several times among samples counts several times, as often as the model drew it.

    Args:
        candidates: outputs for one source.
        utility: compares two of them.

    Returns:
        The expected utility of each; the largest is the choice.
    """
    times = Counter(candidates)
    texts = list(times)
    means = utility(texts) @ numpy.array(list(times.values())) / len(candidates)
    return [float(means[texts.index(text)]) for text in candidates]


def by_expected_utility(utilities: Sequence[float]) -> list[int]:
    """The order of candidates, best first; those with equal utilities keep their order."""
    return sorted(range(len(utilities)), key=lambda index: -utilities[index])


@dataclass
class ChrfConfig:
    """Configuration of chrF."""

    char_order: int = option(6, "longest character n-gram that is counted", minimum=1)
    beta: float = option(2.0, "how much more recall counts than precision", minimum=0)


@register_utility("chrf", config=ChrfConfig, presets={"chrf3": ChrfConfig(beta=3.0)})
class Chrf(Utility):
    """chrF (Popović 2015), between 0 and 100.

    Args:
        char_order: longest character n-gram that is counted.
        beta: how much more recall counts than precision.
    """

    def __init__(self, char_order: int = 6, beta: float = 2.0):
        self.char_order, self.beta = char_order, beta

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """See ``Utility``."""
        precision = recall = orders = numpy.zeros((len(texts), len(texts)))
        for matches, totals in _matches([list("".join(text.split())) for text in texts], self.char_order):
            own, reference = totals[:, None], totals[None, :]
            both = (own > 0) & (reference > 0)  # an order that a text is too short for does not count
            precision = precision + numpy.where(both, matches / numpy.maximum(own, 1), 0)
            recall = recall + numpy.where(both, matches / numpy.maximum(reference, 1), 0)
            orders = orders + both
        precision, recall = precision / numpy.maximum(orders, 1), recall / numpy.maximum(orders, 1)
        weighted = self.beta**2 * precision + recall
        return 100 * (1 + self.beta**2) * precision * recall / numpy.where(weighted > 0, weighted, 1)


@dataclass
class BleuConfig:
    """Configuration of BLEU."""

    max_ngram_order: int = option(4, "longest word n-gram that is counted", minimum=1)


@register_utility("bleu", config=BleuConfig)
class Bleu(Utility):
    """BLEU (Papineni et al. 2002) with effective order, as it is computed for single sentences, between 0 and 100.

    Args:
        max_ngram_order: longest word n-gram that is counted.
    """

    def __init__(self, max_ngram_order: int = 4):
        self.max_ngram_order = max_ngram_order

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """See ``Utility``."""
        order, tokenize = self.max_ngram_order, BLEU().tokenizer
        words = [tokenize(text.rstrip()).split() for text in texts]
        counted = list(_matches(words, order))
        scores = numpy.zeros((len(texts), len(texts)))
        for i, own in enumerate(words):
            totals = [int(total[i]) for _, total in counted]
            for j, reference in enumerate(words):
                correct = [int(matches[i, j]) for matches, _ in counted]
                scores[i, j] = BLEU.compute_bleu(
                    correct, totals, len(own), len(reference), "exp", effective_order=True, max_ngram_order=order
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
