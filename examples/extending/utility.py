"""A utility for minimum Bayes risk: the F1 score of the words that two outputs share, in any order.

``seqgen-generate common.user_dir=examples/extending/utility.py path=runs/a input=test.en generation.sampling=true
generation.beam=16 generation.mbr=word_f1 utility.ignore_case=false``
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from seqgen.extend import Matrix, Utility, option, register_utility


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

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """Compare all pairs of texts.

        Args:
            texts: ``N`` distinct outputs for one source.

        Returns:
            ``(N, N)`` float64: row ``i``, column ``j`` is the utility of text ``i`` with text ``j`` as its reference.
        """
        words = [Counter((text.lower() if self.ignore_case else text).split()) for text in texts]
        scores = numpy.zeros((len(texts), len(texts)))
        for i, output in enumerate(words):
            for j, reference in enumerate(words):
                scores[i, j] = 200 * (output & reference).total() / max(1, output.total() + reference.total())
        return scores
