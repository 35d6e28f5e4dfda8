"""Scores of decoded text against references: BLEU and chrF by sacreBLEU, and exact match.

Metrics of a whole text are registered by name: those of sacreBLEU and ROUGE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from seqgen.core.errors import ConfigError, nearest


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


def text_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, TextScore]:
    """Score text (Post 2018, "A Call for Clarity in Reporting BLEU Scores").

    Args:
        hypotheses: one detokenized output for each sentence.
        references: one reference for each sentence, in the same order.

    Returns:
        ``bleu``, ``chrf``, and ``exact_match``: the percentage of outputs that equal their reference.

    Raises:
        ValueError: the numbers of hypotheses and references differ, or there are none.
    """
    return corpus_scores(METRICS, Texts(hypotheses, references))


@dataclass(frozen=True)
class Texts:
    """The texts of one score.

    Attributes:
        hypotheses: one detokenized output for each sentence.
        references: one reference for each sentence, in the same order.
        sources: the inputs, for metrics that read them; empty if not given.
        lowercase: whether the metrics of sacreBLEU ignore case.
        tokenize: sacreBLEU's tokenizer for BLEU; ``None`` for its default.
        more_references: further texts of references, each with one line for each sentence.
    """

    hypotheses: Sequence[str]
    references: Sequence[str]
    sources: Sequence[str] = ()
    lowercase: bool = False
    tokenize: str | None = None
    more_references: Sequence[Sequence[str]] = ()

    @property
    def every_reference(self) -> list[list[str]]:
        """All texts of references; line n of each belongs to sentence n."""
        return [list(self.references), *map(list, self.more_references)]

    def references_of_sentences(self) -> list[tuple[str, ...]]:
        """For each sentence, its references."""
        return list(zip(*self.every_reference, strict=True))


SETTINGS = ("lowercase", "tokenize")
"""The fields of ``Texts`` that are settings."""


@dataclass(frozen=True)
class CorpusMetric:
    """A metric.

    Attributes:
        score: computes it.
        help: what it is, in one line.
        lower_is_better: whether it is an error rate.
        needs_sources: whether it reads the sources.
        settings: those of ``SETTINGS`` that it reads.
        sacrebleu: makes sacreBLEU's metric of the same settings, with the references; ``None`` for other metrics.
    """

    score: Callable[[Texts], TextScore]
    help: str
    lower_is_better: bool = False
    needs_sources: bool = False
    settings: Sequence[str] = SETTINGS
    sacrebleu: Callable[[Texts], Any] | None = None


CORPUS_METRICS: dict[str, CorpusMetric] = {}
"""The metrics by name; ``register_metric`` adds one."""


def register_metric(
    name: str, help: str, lower_is_better: bool = False, needs_sources: bool = False, settings: Sequence[str] = SETTINGS
) -> Callable[[Callable[[Texts], TextScore]], Callable[[Texts], TextScore]]:
    """Register the decorated function as a metric.

    Args:
        name: the name that selects it.
        help: what it is, in one line.
        lower_is_better: whether it is an error rate.
        needs_sources: whether it reads the sources.
        settings: those of ``SETTINGS`` that it reads; others are refused if only this metric is computed.

    Returns:
        The decorator; it returns the function unchanged.
    """

    def decorate(function: Callable[[Texts], TextScore]) -> Callable[[Texts], TextScore]:
        CORPUS_METRICS[name] = CorpusMetric(function, help, lower_is_better, needs_sources, settings)
        return function

    return decorate


def corpus_metric(name: str) -> CorpusMetric:
    """Look up a metric.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in CORPUS_METRICS:
        known = ", ".join(CORPUS_METRICS)
        raise ConfigError(f"there is no metric {name!r}{nearest(name, CORPUS_METRICS)}; choose from: {known}")
    return CORPUS_METRICS[name]


def corpus_scores(names: Sequence[str], texts: Texts) -> dict[str, TextScore]:
    """Score a text by several metrics.

    Args:
        names: the metrics.
        texts: the text and its references.

    Returns:
        The scores by name, in the order of the names.

    Raises:
        ConfigError: a metric does not exist, needs sources, or its package is not installed.
        ValueError: the numbers of hypotheses and references differ, or there are none.
    """
    metrics = {name: corpus_metric(name) for name in names}
    for name, metric in metrics.items():
        if metric.needs_sources and not texts.sources:
            raise ConfigError(f"metric {name} reads the sources; set source=FILE")
    hypotheses, references = len(texts.hypotheses), len(texts.references)
    if hypotheses != references or not references:
        raise ValueError(f"{hypotheses} hypotheses cannot be scored against {references} references")
    return {name: metric.score(texts) for name, metric in metrics.items()}


def _register_sacrebleu(
    name: str, help: str, kind: str, settings: Sequence[str] = (), lower_is_better: bool = False, **options: Any
) -> None:
    """Register a metric of sacreBLEU: its class ``kind``, with some fields of ``Texts`` and options."""

    def make(texts: Texts) -> Any:
        from sacrebleu import metrics  # slow to import; not needed for --help

        chosen = {key: getattr(texts, key) for key in settings}
        return getattr(metrics, kind)(**chosen, **options, references=texts.every_reference)

    def score(texts: Texts) -> TextScore:
        metric = make(texts)
        return TextScore(metric.corpus_score(list(texts.hypotheses), None).score, str(metric.get_signature()))

    CORPUS_METRICS[name] = CorpusMetric(score, help, lower_is_better, settings=settings, sacrebleu=make)


_register_sacrebleu("bleu", "BLEU (Papineni et al. 2002), by sacreBLEU", "BLEU", ("lowercase", "tokenize"))
_register_sacrebleu("chrf", "chrF (Popović 2015), by sacreBLEU", "CHRF", ("lowercase",))


def _mean(values: Sequence[float], signature: str = "") -> TextScore:
    return TextScore(sum(values) / len(values), signature, tuple(values))


@register_metric("exact_match", "percentage of outputs that equal their reference, or one of them", settings=())
def exact_match(texts: Texts) -> TextScore:
    """See ``CORPUS_METRICS``."""
    pairs = zip(texts.hypotheses, texts.references_of_sentences(), strict=True)
    return _mean([100.0 * (output.strip() in {text.strip() for text in wanted}) for output, wanted in pairs])


_CHRF_WORDS = "chrF++: chrF with words and pairs of words (Popović 2017), by sacreBLEU"

_register_sacrebleu("chrf++", _CHRF_WORDS, "CHRF", ("lowercase",), word_order=2)
_TER = "TER, the translation edit rate (Snover et al. 2006), by sacreBLEU"
_register_sacrebleu("ter", _TER, "TER", lower_is_better=True)  # it ignores case, as the original tool does


def _rouge(texts: Texts, variant: str) -> TextScore:
    """ROUGE (Lin 2004): the mean of the sentences' F-measures, in percent; with several references, the highest one."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ConfigError(f"metric {variant} needs a package: pip install rouge-score") from None
    scorer = RougeScorer([variant])
    pairs = zip(texts.references_of_sentences(), texts.hypotheses, strict=True)
    best = (max(scorer.score(one, output)[variant].fmeasure for one in wanted) for wanted, output in pairs)
    return _mean([100 * value for value in best], "rouge-score|stemmer:no")


for _name in ("rouge1", "rouge2", "rougeL"):
    _help = f"ROUGE-{_name[5:]} (Lin 2004), by Google's rouge-score"
    register_metric(_name, _help, settings=())(partial(_rouge, variant=_name))
