"""Reranking: after decoding, the hypotheses of a line are sorted by a reranker or by their expected utility.

Minimum Bayes risk decoding chooses the output with the largest expected utility against all outputs (Kumar and Byrne
2004; with samples as candidates, Eikema and Aziz 2020). The built-in utilities are sacreBLEU's scores of single
sentences. They count the n-grams of each text once and compare all pairs; sacreBLEU itself would count 5,000 times for
50 samples, which takes a second for each line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from seqgen.text.results import DecodedLine, TextHypothesis, Translation

Matrix: TypeAlias = NDArray[numpy.float64]
"""A float64 array: ``(n, m)`` utilities of ``n`` texts with ``m`` references, or counts of units."""


@dataclass(frozen=True)
class UtilityLine:
    """The outputs for one source, and what they are compared with.

    Attributes:
        source: what the first model reads.
        texts: ``N`` outputs.
        references: ``M`` texts, some of which may also be among ``texts``.
    """

    source: str
    texts: Sequence[str]
    references: Sequence[str]


class Utility(Component):
    """Measures the quality of texts with other texts as references.

    A subclass implements ``__call__``, or ``of_lines`` if it is faster for many lines together. A class that is
    registered with ``@register_utility`` can be chosen by name (``generation.mbr``). Utilities have one scale, that of
    sacreBLEU's scores: 100 for a perfect output, 0 for a useless one. Rankings need only their order, but training with
    a ``SequenceCriterion`` needs the scale.
    """

    setting = "mbr"

    def __call__(self, line: UtilityLine) -> Matrix:
        """Compare the outputs for one source with references.

        Args:
            line: the source, ``N`` outputs and ``M`` references.

        Returns:
            ``(N, M)`` utilities: row ``i``, column ``j`` has that of text ``i`` with reference ``j``.
        """
        if type(self).of_lines is Utility.of_lines:
            raise NotImplementedError
        return self.of_lines([line])[0]

    def of_lines(self, lines: Sequence[UtilityLine]) -> list[Matrix]:
        """Compare the outputs of several lines, which are decoded or trained together.

        Args:
            lines: the lines.

        Returns:
            For each line what ``__call__`` returns.
        """
        return [self(line) for line in lines]


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

    def __call__(self, line: UtilityLine) -> Matrix:
        """See ``Utility``."""
        sequences = [self.units(text) for text in (*line.texts, *line.references)]
        counted = []
        for n in range(1, self.order + 1):
            counts = count_ngrams(sequences, n)
            text, reference = counts[: len(line.texts)], counts[len(line.texts) :]
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


def expected_utilities(lines: Sequence[tuple[str, Sequence[str]]], utility: Utility) -> list[list[float]]:
    """Compute the mean utility of each candidate, with every candidate, itself included, as the reference.

    A text that was sampled several times counts several times as a reference.

    Args:
        lines: for each line, its source and the candidates.
        utility: compares all pairs of texts.

    Returns:
        For each line, the expected utility of each candidate.
    """
    texts = [list(dict.fromkeys(candidates)) for _, candidates in lines]
    compared = compare_texts(utility, [UtilityLine(one[0], own, own) for one, own in zip(lines, texts, strict=True)])
    rows = [[own.index(text) for text in candidates] for (_, candidates), own in zip(lines, texts, strict=True)]
    return [matrix[numpy.ix_(row, row)].mean(1).tolist() for matrix, row in zip(compared, rows, strict=True)]


def compare_texts(utility: Utility, lines: Sequence[UtilityLine]) -> list[Matrix]:
    """Compare the outputs of several lines with references, and check what the utility returns.

    Raises:
        DecodingError: it is no array ``(N, M)`` of numbers for each line, or one of them is not finite.
    """
    found = _of_lines(utility, lines)
    for line, matrix in zip(lines, found, strict=True):
        shape, given = (len(line.texts), len(line.references)), getattr(matrix, "shape", None)
        if given != shape or matrix.dtype.kind not in "fiu" or not numpy.isfinite(matrix).all():
            what = f"must return {shape} finite numbers, not {shown(matrix.tolist() if given else matrix)}"
            raise contract_error(utility, "__call__", what)
    return found


def call_reranker(reranker: Reranker, lines: Sequence[DecodedLine]) -> Iterator[list[float]]:
    """Score the hypotheses of several lines, and check what the reranker returns.

    Raises:
        DecodingError: it is not a number for each hypothesis of each line.
    """
    for (_, hypotheses), scores in zip(lines, _of_lines(reranker, lines), strict=True):
        try:
            numbers = [] if isinstance(scores, str | dict) else [float(score) for score in scores]
        except (TypeError, ValueError):
            numbers = []
        if len(numbers) != len(hypotheses) or any(map(math.isnan, numbers)):
            what = f"must return a number for each of {len(hypotheses)} hypotheses but returns {shown(scores)}"
            raise contract_error(reranker, "__call__", what)
        yield numbers


def _of_lines(owner: Utility | Reranker, lines: Sequence[Any]) -> list[Any]:
    found: list[Any] = check_returned(owner, "of_lines", owner.of_lines(lines), list)
    if len(found) != len(lines):
        raise contract_error(owner, "of_lines", f"must return {len(lines)} results but returns {len(found)}")
    return found


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
    """Scores the hypotheses of a line.

    A subclass implements ``__call__``, or ``of_lines`` if it is faster for many lines together.
    A reranker registered with ``@register_reranker`` is selected by its name (``generation.rerank``). It receives all
    hypotheses of the search, of which the ``nbest`` with the highest scores remain.

    ``build`` receives the models that decode (``resources.models``) and the settings of their ensemble. A reranker that
    scores text with ``Translator(resources.models, **resources.ensemble)`` uses the same sources, weights and
    combination as the search; the settings ``**translation.languages`` of its calls are the languages of the line.
    """

    setting = "rerank"

    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> Sequence[float]:
        """Score the hypotheses of one line.

        Args:
            translation: the line: its number, its text, its source ids, and the prefix of its output.
            hypotheses: the hypotheses, in the order of the search; at least one.

        Returns:
            A score for each; the higher, the better. Hypotheses with equal scores keep their order.
        """
        if type(self).of_lines is Reranker.of_lines:
            raise NotImplementedError
        return self.of_lines([(translation, [*hypotheses])])[0]

    def of_lines(self, lines: Sequence[DecodedLine]) -> list[Sequence[float]]:
        """Score the hypotheses of several lines, which are decoded together.

        Args:
            lines: the lines.

        Returns:
            For each line what ``__call__`` returns.
        """
        return [self(*line) for line in lines]


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

    def ranked(self, lines: Sequence[DecodedLine]) -> list[list[TextHypothesis]]:
        """The hypotheses of each line, best first.

        Args:
            lines: the lines.
        """
        scores: list[list[Any]]
        if self.utility is not None:
            texts = [(line.member_sources[0], [item.text for item in found]) for line, found in lines]
            scores, field = expected_utilities(texts, self.utility), "utility"
        else:
            assert self.reranker is not None
            scores, field = list(call_reranker(self.reranker, lines)), "rerank_score"
        return [
            [replace(found[i], **{field: row[i]}) for i in sorted(range(len(row)), key=row.__getitem__, reverse=True)]
            for (_, found), row in zip(lines, scores, strict=True)
        ]
