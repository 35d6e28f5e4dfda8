"""Minimum Bayes risk decoding with any utility (Eikema and Aziz 2022, "Sampling-Based Approximations to Minimum Bayes
Risk Decoding for Neural Machine Translation").

Of the candidates ``C`` the output with the largest mean utility ``u`` against pseudo-references ``R`` is chosen::

    y* = argmax over h in C of  mu(h),    mu(h) = 1/|R| * sum over r in R of u(h, r)

Pseudo-references stand for the model's distribution: unbiased samples, or samples from a truncated distribution such as
epsilon sampling (Freitag et al. 2023). Candidates may come from another search. ``generation.*`` makes the candidates,
``reranker.references`` has the keys that make the pseudo-references, with the same models::

    seqgen-generate common.user_dir=examples/papers/mbr path=runs/a input=test.en generation.beam=16
        generation.rerank=mbr reranker.utility=chrf reranker.utility_keys={beta:3}
        'reranker.references={sampling:true,epsilon_cutoff:0.02,beam:64,seed:2}'

Without ``reranker.references`` the candidates are the references, as with ``generation.mbr``. If both are samples, give
them different seeds: with equal seeds they are the same texts. Expect a higher score in the chosen utility than that of
beam search, and a smaller effect on other metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy
from numpy.typing import NDArray

from seqgen import GenerationConfig
from seqgen.extend import (
    DecodedLine,
    Matrix,
    Reranker,
    Resources,
    TextHypothesis,
    Translation,
    Utility,
    UtilityLine,
    compare_texts,
    option,
    register_reranker,
    utility_from_config,
)

from .references import PseudoReferences


@dataclass
class MbrConfig:
    """Configuration of minimum Bayes risk; its fields are the keys ``reranker.FIELD``."""

    utility: str = option("chrf", "utility by name: chrf, bleu, ter, similarity, embedding, or your own")
    utility_keys: dict[str, Any] = option({}, "the utility's keys, such as {beta:3}")
    references: dict[str, Any] = option(
        {}, "keys of generation that make the pseudo-references; empty: the candidates are the references"
    )


class UtilityMatrix:
    """The utilities of the candidates and references of one line, each of which is computed when it is first needed.

    Args:
        utility: compares two texts.
        candidates: ``N`` distinct texts.
        references: ``M`` texts; a text may occur several times, and its utilities are computed once.
        source: the source of the line.

    Attributes:
        computed: how many utilities have been computed.
    """

    def __init__(self, utility: Utility, candidates: Sequence[str], references: Sequence[str], source: str = ""):
        self.utility, self.candidates, self.references, self.source = utility, candidates, references, source
        self.computed = 0
        self._texts = list(dict.fromkeys(references))
        self._column = numpy.array([self._texts.index(text) for text in references])
        self._values: Matrix = numpy.full((len(candidates), len(self._texts)), numpy.nan)

    def __getitem__(self, block: tuple[Sequence[int] | NDArray[Any], Sequence[int] | NDArray[Any]]) -> Matrix:
        """The utilities of ``n`` candidates with ``m`` references, given by their numbers: ``(n, m)``."""
        rows, columns = numpy.asarray(block[0]), self._column[numpy.asarray(block[1])]
        missing = numpy.isnan(self._values[numpy.ix_(rows, columns)])
        if missing.any():
            new_rows, new_columns = rows[missing.any(1)], numpy.unique(columns[missing.any(0)])
            texts = [self.candidates[row] for row in new_rows]
            line = UtilityLine(self.source, texts, [self._texts[column] for column in new_columns])
            (found,) = compare_texts(self.utility, [line])
            self._values[numpy.ix_(new_rows, new_columns)] = found
            self.computed += found.size
        utilities: Matrix = self._values[numpy.ix_(rows, columns)]
        return utilities


@register_reranker("mbr", config=MbrConfig)
class Mbr(Reranker):
    """Ranks the hypotheses of a line by their mean utility against all pseudo-references.

    Args:
        utility: compares a text with a reference.
        references: returns the pseudo-references of a line; ``None``: the hypotheses themselves.

    Attributes:
        computed: how many utilities have been computed, over all lines.
    """

    def __init__(self, utility: Utility, references: Callable[[Translation], Sequence[str]] | None = None):
        self.utility, self.references, self.computed = utility, references, 0

    @classmethod
    def build(cls, cfg: MbrConfig, resources: Resources) -> Self:
        """Make the utility and the decoding of pseudo-references; further fields are arguments of the constructor."""
        keys = {f"utility.{key}": value for key, value in cfg.utility_keys.items()}
        utility = utility_from_config(GenerationConfig(mbr=cfg.utility, components=keys), resources)
        references = PseudoReferences(resources.models, cfg.references, resources.ensemble) if cfg.references else None
        shared = {field.name for field in fields(MbrConfig)}
        further = {field.name: getattr(cfg, field.name) for field in fields(cfg) if field.name not in shared}
        return cls(utility, references, **further)

    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> list[float]:
        """See ``Reranker``."""
        texts = [item.text for item in hypotheses]
        references = self.references(translation) if self.references else texts
        source = translation.member_sources[0]
        matrix = UtilityMatrix(self.utility, list(dict.fromkeys(texts)), references, source)
        expected = dict(zip(matrix.candidates, self.expected(matrix, translation.id), strict=True))
        self.computed += matrix.computed
        return [float(expected[text]) for text in texts]

    def of_lines(self, lines: Sequence[DecodedLine]) -> list[Sequence[float]]:
        """Make the pseudo-references of all lines together; see ``Reranker``."""
        if isinstance(self.references, PseudoReferences):
            self.references.prepare([line for line, _ in lines])
        return super().of_lines(lines)

    def expected(self, matrix: UtilityMatrix, line: int) -> Matrix:
        """Estimate the expected utility of each candidate; an estimator overrides this.

        Args:
            matrix: computes utilities.
            line: number of the line, on which random numbers depend.

        Returns:
            ``(N,)`` expected utilities.
        """
        expected: Matrix = matrix[range(len(matrix.candidates)), range(len(matrix.references))].mean(1)
        return expected
