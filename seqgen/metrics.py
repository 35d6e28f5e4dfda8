"""Scores of decoded text against references: BLEU and chrF by sacreBLEU, and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TextScore:
    """The score of a text.

    Attributes:
        value: the score, from 0 to 100; larger is better.
        signature: sacreBLEU's signature, which names the metric's settings; empty for other metrics.
        sentences: the values of the sentences, for a score that is their mean; empty for other scores.
    """

    value: float
    signature: str = ""
    sentences: tuple[float, ...] = field(default=(), compare=False, repr=False)


METRICS = ("bleu", "chrf", "exact_match")
"""The names of the scores that ``text_scores`` returns."""

RESAMPLES = 1000
"""Number of bootstrap resamples of ``score_with_interval``; sacreBLEU's default."""
RESAMPLED = 5000
"""Maximum number of sentences that are resampled; sacreBLEU holds the counts of all resamples, here 360 MB, at once."""


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
    _check_numbers(hypotheses, references)
    scores = {}
    for name, metric in _metrics(lowercase, tokenize).items():
        value = metric.corpus_score(list(hypotheses), [list(references)]).score
        scores[name] = TextScore(value, str(metric.get_signature()))
    return {**scores, "exact_match": TextScore(_exact_match(hypotheses, references))}


def score_with_interval(
    name: str,
    hypotheses: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
    tokenize: str | None = None,
) -> tuple[TextScore, float | None]:
    """Score text by one metric, with sacreBLEU's bootstrap confidence interval (Koehn 2004).

    Args:
        name: one of ``METRICS``.
        hypotheses: one detokenized output for each sentence.
        references: one reference for each sentence, in the same order.
        lowercase: see ``text_scores``.
        tokenize: see ``text_scores``.

    Returns:
        The score, which equals that of ``text_scores``, and half the width of its 95% confidence interval, from
        ``RESAMPLES`` resamples of the sentences; ``None`` for ``exact_match`` and for more than ``RESAMPLED``
        sentences.

    Raises:
        ValueError: the numbers of hypotheses and references differ, or there are none.
    """
    _check_numbers(hypotheses, references)
    if name == "exact_match":
        return TextScore(_exact_match(hypotheses, references)), None
    metric, resamples = _metrics(lowercase, tokenize)[name], RESAMPLES if len(references) <= RESAMPLED else 1
    score = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=resamples)
    interval = float(score._ci) if resamples > 1 else None  # it has no public name
    return TextScore(score.score, str(metric.get_signature())), interval


def _metrics(lowercase: bool, tokenize: str | None) -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF  # slow to import; not needed for --help

    return {"bleu": BLEU(lowercase=lowercase, tokenize=tokenize), "chrf": CHRF(lowercase=lowercase)}


def _exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    equal = sum(h.strip() == r.strip() for h, r in zip(hypotheses, references, strict=True))
    return 100 * equal / len(references)


def _check_numbers(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses cannot be scored against {len(references)} references")


def signatures() -> dict[str, str]:
    """sacreBLEU's signatures of the scores of ``text_scores``, by name."""
    return {name: score.signature for name, score in text_scores(["a"], ["a"]).items() if score.signature}
