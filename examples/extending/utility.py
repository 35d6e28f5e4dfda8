"""A utility for minimum Bayes risk: the F1 score of the words that two outputs share, in any order.

``seqgen-generate common.user_dir=examples/extending/utility.py path=runs/a input=test.en generation.sampling=true
generation.beam=16 generation.mbr=word_f1 utility.ignore_case=false``
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy

from seqgen.extend import Matrix, Utility, UtilityLine, option, register_utility


@dataclass
class WordF1Config:
    """Configuration of the utility; its fields are the keys ``utility.FIELD``."""

    ignore_case: bool = option(True, "compare words in lower case")


@register_utility("word_f1", config=WordF1Config)
class WordF1(Utility):
    """The harmonic mean of the precision and the recall of words, between 0 and 100.

    Args:
        ignore_case: whether words are compared in lower case.
    """

    def __init__(self, ignore_case: bool = True):
        self.ignore_case = ignore_case

    def __call__(self, line: UtilityLine) -> Matrix:
        """Compare the outputs for one source with references.

        Args:
            line: the source, ``N`` outputs and ``M`` references.

        Returns:
            ``(N, M)`` float64: row ``i``, column ``j`` is the utility of text ``i`` with reference ``j``.
        """
        texts, references = (list(map(self.words, each)) for each in (line.texts, line.references))
        scores = numpy.zeros((len(texts), len(references)))
        for i, output in enumerate(texts):
            for j, reference in enumerate(references):
                scores[i, j] = 200 * (output & reference).total() / max(1, output.total() + reference.total())
        return scores

    def words(self, text: str) -> Counter[str]:
        """How often each word occurs in a text."""
        return Counter((text.lower() if self.ignore_case else text).split())
