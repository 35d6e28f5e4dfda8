"""Scores of decoded text against references: BLEU and chrF by sacreBLEU, and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TextScore:
    """The score of a text.

    Attributes:
        value: the score, from 0 to 100; larger is better.
        signature: sacreBLEU's signature, which names the metric's settings; empty for other metrics.
    """

    value: float
    signature: str = ""


def text_scores(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False, tokenize: str | None = None
) -> dict[str, TextScore]:
    """Score text (Post 2018, "A Call for Clarity in Reporting BLEU Scores").

    Args:
        hypotheses: one detokenized output for each sentence.
        references: one reference for each sentence, in the same order.
        lowercase: whether BLEU and chrF ignore case.
        tokenize: sacreBLEU's tokenizer for BLEU; ``None`` for its default, ``13a``.

    Returns:
        ``bleu``, ``chrf``, and ``exact_match``: the percentage of outputs that equal their reference.

    Raises:
        ValueError: the numbers of hypotheses and references differ, or there are none.
    """
    from sacrebleu.metrics import BLEU, CHRF  # slow to import; not needed for --help

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
    """sacreBLEU's signatures of the scores of ``text_scores``, by name."""
    return {name: score.signature for name, score in text_scores(["a"], ["a"]).items() if score.signature}
