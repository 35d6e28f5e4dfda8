"""Minimum Bayes risk: of several outputs, the one that is most like the others.

Kumar and Byrne 2004; with samples for candidates, Eikema and Aziz 2020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF

UTILITIES = ("chrf", "bleu")
"""How likeness is measured: sacreBLEU's scores of one sentence, between 0 and 100."""


def expected_utilities(candidates: Sequence[str], utility: str) -> list[float]:
    """The mean likeness of each candidate to all of them, itself included, each counting alike.

    A text that occurs several times among samples so counts several times, as often as the model drew it.

    Args:
        candidates: outputs for one source.
        utility: one of ``UTILITIES``; BLEU with effective order, as it is computed for single sentences.

    Returns:
        The expected utility of each; the largest is the choice.
    """
    metric = CHRF() if utility == "chrf" else BLEU(effective_order=True)
    times = Counter(candidates)
    means = {}
    for text in times:
        # one call for each reference: with several in one call, sacreBLEU would take the best of them
        likeness = (count * metric.sentence_score(text, [other]).score for other, count in times.items())
        means[text] = sum(likeness) / len(candidates)
    return [means[text] for text in candidates]


def by_expected_utility(utilities: Sequence[float]) -> list[int]:
    """The order of candidates, the best first; those alike in the order in which they come."""
    return sorted(range(len(utilities)), key=lambda index: -utilities[index])
