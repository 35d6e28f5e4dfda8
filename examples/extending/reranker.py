"""A reranker: hypotheses whose length differs from the expected one get lower scores.

``seqgen-generate common.user_dir=examples/extending/reranker.py path=runs/a input=test.en generation.beam=8
generation.rerank=length_ratio reranker.ratio=1.1``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqgen.extend import Reranker, TextHypothesis, Translation, option, register_reranker


@dataclass
class LengthRatioConfig:
    """Configuration of the reranker; its fields are the keys ``reranker.FIELD``."""

    ratio: float = option(1.0, "expected number of output words for each source word", minimum=0)
    weight: float = option(0.5, "subtracted for each word more or less than expected, in nats", minimum=0)


@register_reranker("length_ratio", config=LengthRatioConfig)
class LengthRatio(Reranker):
    """The score of the search less ``weight * |words - ratio * source words|``.

    Args:
        ratio: expected number of output words for each source word.
        weight: subtracted for each word more or less than expected, in nats.
    """

    def __init__(self, ratio: float = 1.0, weight: float = 0.5):
        self.ratio, self.weight = ratio, weight

    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> list[float]:
        """Score the hypotheses of one line.

        Args:
            translation: the line.
            hypotheses: its hypotheses, in the order of the search.

        Returns:
            A score for each; the higher, the better.
        """
        expected = self.ratio * len(translation.member_sources[0].split())
        return [item.score - self.weight * abs(len(item.text.split()) - expected) for item in hypotheses]
