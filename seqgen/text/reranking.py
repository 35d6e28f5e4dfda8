"""Reranking: after decoding, the hypotheses of a line are sorted by a reranker or by their expected utility.

Minimum Bayes risk decoding chooses the output with the largest expected utility against all outputs (Kumar and Byrne
2004; with samples as candidates, Eikema and Aziz 2020). The built-in utilities are sacreBLEU's scores of single
sentences. They count the n-grams of each text once and compare all pairs; sacreBLEU itself would count 5,000 times for
50 samples, which takes a second for each line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

from seqgen.config import GenerationConfig, option
from seqgen.core.component import Component
from seqgen.core.contract import check_returned, contract_error
from seqgen.core.errors import ConfigError, shown
from seqgen.decoding.building import Resources, build_component
from seqgen.registry import RERANKERS, UTILITIES, register_utility
from seqgen.text.results import TextHypothesis, Translation

Matrix: TypeAlias = NDArray[numpy.float64]
"""A float64 array: ``(n, n)`` utilities of ``n`` texts, or counts of units."""


class Utility(Component):
    """Measures the quality of a text with another text as the reference; a subclass implements ``__call__``.

    A class that is registered with ``@register_utility`` can be chosen by name (``generation.mbr``). Utilities
    have one scale, that of sacreBLEU's scores: 100 for a perfect output, 0 for a useless one. Rankings need only their
    order, but training with a ``SequenceCriterion`` needs the scale.
    """

    setting = "mbr"

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """Compare all pairs of texts.

        Args:
            texts: ``N`` distinct outputs for one source.

        Returns:
            ``(N, N)`` utilities: row ``i``, column ``j`` has that of text ``i`` with text ``j`` as the reference.
        """
        raise NotImplementedError

    def compare(self, texts: Sequence[str], references: Sequence[str]) -> Matrix:
        """Compare texts with references; a subclass that need not compare all pairs of both overrides it.

        Args:
            texts: ``N`` outputs for one source.
            references: ``M`` texts, some of which may also be among ``texts``.

        Returns:
            ``(N, M)`` utilities: row ``i``, column ``j`` has that of text ``i`` with reference ``j``.
        """
        index = {text: i for i, text in enumerate(dict.fromkeys([*texts, *references]))}
        rows, columns = [index[text] for text in texts], [index[text] for text in references]
        return self(list(index))[numpy.ix_(rows, columns)]


class NgramUtility(Utility):
    """A utility that depends only on how many n-grams a text and a reference have, and have in common.

    A subclass implements ``units`` and ``scores``.

    Args:
        order: longest n-gram that is counted.
    """

    def __init__(self, order: int):
        self.order = order

    def units(self, text: str) -> Sequence[str]:
        """Divide a text into the words or characters of which n-grams consist."""
        raise NotImplementedError

    def scores(self, matches: Matrix, text: Matrix, reference: Matrix) -> Matrix:
        """Compute utilities from numbers of n-grams.

        Args:
            matches: ``(order, N, M)`` n-grams in common, for each n.
            text: ``(order, N)`` n-grams of the texts.
            reference: ``(order, M)`` n-grams of the references.

        Returns:
            ``(N, M)`` utilities.
        """
        raise NotImplementedError

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """See ``Utility``."""
        return self.compare(texts, texts)

    def compare(self, texts: Sequence[str], references: Sequence[str]) -> Matrix:
        """See ``Utility.compare``."""
        sequences = [self.units(text) for text in (*texts, *references)]
        counted = []
        for n in range(1, self.order + 1):
            counts = count_ngrams(sequences, n)
            text, reference = counts[: len(texts)], counts[len(texts) :]
            matches = numpy.stack([numpy.minimum(row, reference).sum(1) for row in text])
            counted.append((matches, text.sum(1), reference.sum(1)))
        return self.scores(*(numpy.stack(part) for part in zip(*counted, strict=True)))


def utility_from_config(cfg: GenerationConfig, resources: Resources) -> Utility:
    """Build the utility that ``cfg.mbr`` names.

    Args:
        cfg: the configuration.
        resources: the target vocabulary and its tokenizer.

    Raises:
        ConfigError: the name is not registered.
    """
    return build_component(UTILITIES, cfg.mbr, Utility, cfg, resources)


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
    means = compare_texts(utility, texts, texts) @ numpy.array(list(times.values())) / len(candidates)
    return [float(means[texts.index(text)]) for text in candidates]


def compare_texts(utility: Utility, texts: Sequence[str], references: Sequence[str]) -> Matrix:
    """Compare texts with references, all pairs of texts if both are the same, and check what the utility returns.

    Raises:
        DecodingError: it is no array ``(N, M)`` of numbers, or one of them is not finite.
    """
    same = texts is references
    method, result = ("__call__", utility(texts)) if same else ("compare", utility.compare(texts, references))
    kind: Any = numpy.ndarray
    found: Matrix = check_returned(utility, method, result, kind)
    shape = (len(texts), len(references))
    if found.shape != shape or found.dtype.kind not in "fiu" or not numpy.isfinite(found).all():
        raise contract_error(
            utility, method, f"must return {shape} finite numbers but returns {found.shape} of {found.dtype}"
        )
    return found


def call_reranker(reranker: Reranker, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> list[float]:
    """Score the hypotheses of a line, and check what the reranker returns.

    Raises:
        DecodingError: it is not a number for each hypothesis.
    """
    scores = reranker(translation, hypotheses)
    try:
        numbers = [] if isinstance(scores, str | dict) else [float(score) for score in scores]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != len(hypotheses) or any(map(math.isnan, numbers)):
        what = f"must return a number for each of {len(hypotheses)} hypotheses but returns {shown(scores)}"
        raise contract_error(reranker, "__call__", what)
    return numbers


def by_expected_utility(utilities: Sequence[float]) -> list[int]:
    """The indices of candidates by decreasing utility; candidates with equal utilities keep their order."""
    return sorted(range(len(utilities)), key=lambda index: -utilities[index])


@dataclass
class ChrfConfig:
    """Configuration of chrF."""

    char_order: int = option(6, "longest character n-gram that is counted", minimum=1, maximum=1000)
    beta: float = option(2.0, "how much more recall counts than precision", minimum=0)


@register_utility("chrf", config=ChrfConfig, presets={"chrf3": ChrfConfig(beta=3.0)})
class Chrf(NgramUtility):
    """chrF (Popović 2015), between 0 and 100.

    Args:
        char_order: longest character n-gram that is counted.
        beta: how much more recall counts than precision.
    """

    def __init__(self, char_order: int = 6, beta: float = 2.0):
        super().__init__(char_order)
        self.beta = beta

    def units(self, text: str) -> Sequence[str]:
        """The characters of a text, without white space."""
        return "".join(text.split())

    def scores(self, matches: Matrix, text: Matrix, reference: Matrix) -> Matrix:
        """See ``NgramUtility.scores``."""
        text, reference = text[:, :, None], reference[:, None, :]
        both = (text > 0) & (reference > 0)  # an order is skipped if one of the texts is too short for it
        orders = numpy.maximum(both.sum(0), 1)
        precision = numpy.where(both, matches / numpy.where(both, text, 1), 0).sum(0) / orders
        recall = numpy.where(both, matches / numpy.where(both, reference, 1), 0).sum(0) / orders
        weighted = self.beta**2 * precision + recall
        scores: Matrix = 100 * (1 + self.beta**2) * precision * recall / numpy.where(weighted > 0, weighted, 1)
        return scores


@dataclass
class BleuConfig:
    """Configuration of BLEU."""

    max_ngram_order: int = option(4, "longest word n-gram that is counted", minimum=1, maximum=1000)


@register_utility("bleu", config=BleuConfig)
class Bleu(NgramUtility):
    """BLEU of single sentences (Papineni et al. 2002), with effective order and smoothing, between 0 and 100.

    Args:
        max_ngram_order: longest word n-gram that is counted.
    """

    def __init__(self, max_ngram_order: int = 4):
        super().__init__(max_ngram_order)
        from sacrebleu.metrics import BLEU  # slow to import; few decodes need it

        self.tokenize = BLEU().tokenizer

    def units(self, text: str) -> Sequence[str]:
        """The words of a text, as sacreBLEU tokenizes it."""
        return str(self.tokenize(text.rstrip())).split()

    def scores(self, matches: Matrix, text: Matrix, reference: Matrix) -> Matrix:
        """See ``NgramUtility.scores``."""
        lengths, text = text[0][:, None], text[:, :, None] + numpy.zeros_like(matches)
        counted = text > 0  # effective order: n-grams longer than the text are skipped
        missing = counted & (matches == 0)
        smoothed = 1 / 2.0 ** missing.cumsum(0)  # matches of the k-th order without a match: 2 to the power of -k
        precisions = numpy.where(missing, smoothed, matches) / numpy.where(counted, text, 1)
        logs = numpy.log(numpy.where(counted, precisions, 1)).sum(0) / numpy.maximum(counted.sum(0), 1)
        brevity = numpy.minimum(0, 1 - reference[0] / numpy.maximum(lengths, 1))
        return numpy.where(matches.any(0), 100 * numpy.exp(brevity + logs), 0)


def count_ngrams(sequences: Sequence[Sequence[str]], n: int) -> Matrix:
    """Count the n-grams of each sequence.

    Returns:
        ``(sequences, distinct n-grams)`` counts.
    """
    counts = [Counter(zip(*(sequence[i:] for i in range(n)), strict=False)) for sequence in sequences]
    columns = {ngram: i for i, ngram in enumerate(dict.fromkeys(gram for count in counts for gram in count))}
    table = numpy.zeros((len(sequences), len(columns)), dtype=numpy.float64)
    for row, count in enumerate(counts):
        table[row, [columns[ngram] for ngram in count]] = list(count.values())
    return table


class Reranker(Component):
    """Scores the hypotheses of a line; a subclass implements ``__call__``.

    A reranker registered with ``@register_reranker`` is selected by its name (``generation.rerank``). It receives all
    hypotheses of the search, of which the ``nbest`` with the highest scores remain.

    ``build`` receives the models that decode (``resources.models``) and the settings of their ensemble. A reranker that
    scores text with ``Translator(resources.models, **resources.ensemble)`` uses the same sources, weights and
    combination as the search; the settings ``**translation.languages`` of its calls are the languages of the line.
    """

    setting = "rerank"

    def prepare(self, lines: Sequence[Translation]) -> None:
        """Receive lines before their hypotheses are scored, for work that is faster for many lines together.

        Args:
            lines: consecutive lines, without hypotheses; empty lines included.
        """

    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> Sequence[float]:
        """Score the hypotheses of one line.

        Args:
            translation: the line: its number, its text, its source ids, and the prefix of its output.
            hypotheses: the hypotheses, in the order of the search; at least one.

        Returns:
            A score for each; the higher, the better. Hypotheses with equal scores keep their order.
        """
        raise NotImplementedError


class Ranker:
    """Ranks the hypotheses of a line after the search, by minimum Bayes risk or by a reranker.

    Args:
        cfg: the decoding settings.
        objects: the utility or the reranker, if it is given as an object, by the keys ``mbr`` and ``rerank``.
        beam: hypotheses that the search returns.
        resources: what both may use.

    Raises:
        ConfigError: a name is not registered, both are given, or there is only one hypothesis.
    """

    def __init__(self, cfg: GenerationConfig, objects: Mapping[str, Any], beam: int, resources: Resources):
        named = build_component(RERANKERS, cfg.rerank, Reranker, cfg, resources) if cfg.rerank else None
        self.reranker: Reranker | None = named or objects.get("rerank")
        self.utility: Utility | None = utility_from_config(cfg, resources) if cfg.mbr else objects.get("mbr")
        if beam == 1:
            what = "minimum Bayes risk" if self.utility is not None else "reranking"
            raise ConfigError(f"{what} compares hypotheses, but only one is generated; set generation.beam=2 or more")
        if self.utility is not None and self.reranker is not None:
            raise ConfigError(
                "a utility and a reranker both rank hypotheses; set only one of generation.mbr and generation.rerank"
            )

    def ranked(self, line: Translation, found: Sequence[TextHypothesis]) -> list[TextHypothesis]:
        """The hypotheses of a line, best first.

        Args:
            line: the line, without hypotheses.
            found: the hypotheses in the order of the search; at least one.
        """
        if self.utility is not None:
            utilities = expected_utilities([item.text for item in found], self.utility)
            return [replace(found[index], utility=utilities[index]) for index in by_expected_utility(utilities)]
        assert self.reranker is not None
        scores = call_reranker(self.reranker, line, found)
        return [replace(found[index], rerank_score=scores[index]) for index in by_expected_utility(scores)]
