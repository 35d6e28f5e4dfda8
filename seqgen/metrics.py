"""Scores of decoded text against references, by sacreBLEU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TextScore:
    """A score.

    Attributes:
        value: the score; larger is better, 100 is best.
        signature: what exactly was computed, as sacreBLEU states it; empty where it has none.
    """

    value: float
    signature: str = ""


def text_scores(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False, tokenize: str | None = None
) -> dict[str, TextScore]:
    """Score text (Post 2018, "A Call for Clarity in Reporting BLEU Scores").

    Args:
        hypotheses: one output for each sentence, detokenized.
        references: the reference outputs, in the same order and number.
        lowercase: whether upper and lower case count as equal.
        tokenize: sacreBLEU's tokenizer for BLEU; its default (``13a``) if not given.

    Returns:
        ``bleu``, ``chrf``, and ``exact_match``: the percentage of outputs that equal their reference.

    Raises:
        ValueError: the numbers differ, or there are none.
    """
    from sacrebleu.metrics import BLEU, CHRF  # takes a third of a second, which --help need not wait for

    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses cannot be scored against {len(references)} references")
    scores = {}
    metrics = {"bleu": BLEU(lowercase=lowercase, tokenize=tokenize), "chrf": CHRF(lowercase=lowercase)}
    for name, metric in metrics.items():
        value = metric.corpus_score(list(hypotheses), [list(references)]).score
        scores[name] = TextScore(value, str(metric.get_signature()))
    equal = sum(h.strip() == r.strip() for h, r in zip(hypotheses, references, strict=True))
    return {**scores, "exact_match": TextScore(100 * equal / len(references))}


def signatures() -> dict[str, str]:
    """What ``text_scores`` computes, as sacreBLEU states it, by name."""
    return {name: score.signature for name, score in text_scores(["a"], ["a"]).items() if score.signature}
