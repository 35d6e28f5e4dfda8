"""Scores of decoded text against references, by sacreBLEU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF


@dataclass(frozen=True)
class TextScore:
    """A score.

    Attributes:
        value: the score; larger is better, 100 is best.
        signature: what exactly was computed, as sacreBLEU states it; empty where it has none.
    """

    value: float
    signature: str = ""


def text_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, TextScore]:
    """Score text (Post 2018, "A Call for Clarity in Reporting BLEU Scores").

    Args:
        hypotheses: one output for each sentence, detokenized.
        references: the right answers, in the same order and number.

    Returns:
        ``bleu``, ``chrf``, and ``exact_match``: the percentage of outputs that equal their reference.

    Raises:
        ValueError: the numbers differ, or there are none.
    """
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses cannot be scored against {len(references)} references")
    scores = {}
    for name, metric in {"bleu": BLEU(), "chrf": CHRF()}.items():
        value = metric.corpus_score(list(hypotheses), [list(references)]).score
        scores[name] = TextScore(value, str(metric.get_signature()))
    equal = sum(h.strip() == r.strip() for h, r in zip(hypotheses, references, strict=True))
    return {**scores, "exact_match": TextScore(100 * equal / len(references))}
