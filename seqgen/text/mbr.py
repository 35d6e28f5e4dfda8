"""Minimum Bayes risk decoding: choose the output with the largest expected utility against all outputs.

Kumar and Byrne 2004; with samples as candidates, Eikema and Aziz 2020. The built-in utilities are sacreBLEU's scores of
single sentences. They count the n-grams of each text once and compare all pairs; sacreBLEU itself would count 5,000
times for 50 samples, which takes a second for each line.
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
    """Measures the quality of a text with another text as the reference; a subclass implements ``__call__``.

    A class that is registered with ``@register_utility`` can be chosen by name (``generation.mbr``).
    """

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """Compare all pairs of texts.

        Args:
            texts: ``N`` distinct outputs for one source.

        Returns:
            ``(N, N)`` utilities: row ``i``, column ``j`` has that of text ``i`` with text ``j`` as the reference.
        """
        raise NotImplementedError


def utility_from_config(cfg: GenerationConfig, resources: Resources) -> Utility:
    """Build the utility that ``cfg.mbr`` names.

    Args:
        cfg: the configuration.
        resources: the target vocabulary and its tokenizer.

    Raises:
        ConfigError: the name is not registered.
    """
    return build(UTILITIES, cfg.mbr, Utility, cfg, resources)


def expected_utilities(candidates: Sequence[str], utility: Utility) -> list[float]:
    """Compute the mean utility of each candidate, with every candidate, itself included, as the reference.

    A text that was sampled several times counts several times as a reference.

    Args:
        candidates: outputs for one source.
        utility: compares all pairs of texts.

    Returns:
        The expected utility of each candidate.
    """
    times = Counter(candidates)
    texts = list(times)
    means = utility(texts) @ numpy.array(list(times.values())) / len(candidates)
    return [float(means[texts.index(text)]) for text in candidates]


def by_expected_utility(utilities: Sequence[float]) -> list[int]:
    """The indices of candidates by decreasing utility; candidates with equal utilities keep their order."""
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
            both = (own > 0) & (reference > 0)  # an order is skipped if one of the texts is too short for it
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
    """BLEU of single sentences (Papineni et al. 2002), with effective order and smoothing, between 0 and 100.

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
    """Count n-grams, and those that two texts have in common, for each n up to ``order``.

    ``a a b`` and ``a b b`` have 2 unigrams in common: an ``a`` and a ``b``.

    Returns:
        For each n the numbers of common n-grams ``(N, N)`` and of all n-grams ``(N,)``.
    """
    found = []
    for n in range(1, order + 1):
        counts = [Counter(zip(*(sequence[i:] for i in range(n)), strict=False)) for sequence in sequences]
        columns = {ngram: i for i, ngram in enumerate(dict.fromkeys(gram for count in counts for gram in count))}
        table = numpy.zeros((len(sequences), len(columns)), dtype=numpy.int32)
        for row, count in enumerate(counts):
            table[row, [columns[ngram] for ngram in count]] = list(count.values())
        common = numpy.stack([numpy.minimum(row, table).sum(1) for row in table])
        found.append((common.astype(numpy.float64), table.sum(1).astype(numpy.float64)))
    return found
