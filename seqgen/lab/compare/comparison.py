"""The comparison of systems: scores, tests, scores of parts of the text, and the sentences that changed most.

It is written as text of at most 80 columns, as JSON and as a page.
"""

from __future__ import annotations

import functools
import html
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Any

from seqgen.lab.compare.document import Html, Table, page_of, text_of
from seqgen.lab.compare.significance import LEVEL, Measure, System, Tested, measure, paired_tests, untested
from seqgen.metrics import Texts

VERSION = 1
"""Version of the JSON form."""


Words = Callable[[str], list[str]]

LENGTHS = (1, 10, 20, 30, 40, 50, 60)
"""The first length of each part, in words of the source."""
COUNTS = (0, 1, 2, 5, 10, 100, 1000)
"""The first number of occurrences of each part."""
AGREEMENTS = (0, 25, 50, 75, 100)
"""The lowest agreement of each part; 100 means that all outputs are equal."""
WORDS = "F1 of words"


@dataclass(frozen=True)
class Part:
    """Some sentences or words.

    Attributes:
        label: what they have in common, such as ``10-19``.
        count: how many there are.
        scores: for each metric, the score of each system.
    """

    label: str
    count: int
    scores: dict[str, list[float]]


@dataclass(frozen=True)
class Breakdown:
    """The scores of the parts of a text.

    Attributes:
        name: a short name, for JSON.
        title: what the parts are.
        unit: what ``Part.count`` counts.
        parts: the parts that occur.
    """

    name: str
    title: str
    unit: str
    parts: list[Part]


def by_length(
    systems: Sequence[System], measures: Mapping[str, Measure], sources: Sequence[str], words: Words
) -> Breakdown:
    """Scores by the length of the source.

    Args:
        systems: the systems.
        measures: the metrics by name.
        sources: the sources.
        words: splits a line into words.
    """
    groups = _groups([max(1, len(words(line))) for line in sources], LENGTHS)
    parts = [_scored(_label(LENGTHS, place), rows, systems, measures) for place, rows in groups]
    return Breakdown("length", "by length of the source, in words", "sentences", parts)


def by_agreement(systems: Sequence[System], measures: Mapping[str, Measure]) -> Breakdown:
    """Scores by the agreement of the systems: the mean chrF1 between their outputs, which is symmetric.

    Args:
        systems: at least two systems.
        measures: the metrics by name.
    """
    groups = _groups(agreements([system.hypotheses for system in systems]), AGREEMENTS)
    labels = [*(f"{low}-{high}" for low, high in pairwise(AGREEMENTS)), "equal"]
    parts = [_scored(labels[place], rows, systems, measures) for place, rows in groups]
    return Breakdown("agreement", "by agreement of the systems, in chrF between their outputs", "sentences", parts)


def agreements(texts: Sequence[Sequence[str]]) -> list[float]:
    """For each sentence, the mean chrF1 between the outputs of each two texts; below 100 unless all are equal."""
    from sacrebleu.metrics import CHRF  # slow to import

    chrf, found = CHRF(beta=1), []
    for outputs in zip(*texts, strict=True):
        values = [chrf.sentence_score(one, [other]).score for one, other in combinations(outputs, 2) if one != other]
        pairs = len(outputs) * (len(outputs) - 1) // 2
        mean = (sum(values) + 100 * (pairs - len(values))) / pairs
        found.append(min(mean, 99.999) if values else 100.0)
    return found


def by_frequency(
    systems: Sequence[System], references: Sequence[str], words: Words, training: Iterable[str] | None = None
) -> Breakdown:
    """The F1 of words by their frequency: a word of an output is correct as often as the reference has it.

    Args:
        systems: the systems.
        references: one reference for each sentence.
        words: splits a line into words.
        training: the text in which words are counted; ``None`` for the references.
    """
    wanted = [Counter(words(line)) for line in references]
    counted = wanted if training is None else map(Counter, map(words, training))
    frequency: Counter[str] = Counter()
    for counts in counted:
        frequency.update(counts)
    place = functools.cache(lambda word: _place(frequency[word], COUNTS))

    def by_part(lines: Iterable[Counter[str]]) -> Counter[int]:
        return Counter(place(word) for line in lines for word in line.elements())

    of_reference = by_part(wanted)
    f1: dict[int, list[float]] = {part: [] for part in sorted(of_reference)}  # other words can be correct nowhere
    for system in systems:
        outputs = [Counter(words(line)) for line in system.hypotheses]
        written = by_part(outputs)
        correct = by_part(output & reference for output, reference in zip(outputs, wanted, strict=True))
        for part, scores in f1.items():
            scores.append(200 * correct[part] / (written[part] + of_reference[part]))
    parts = [Part(_label(COUNTS, part), of_reference[part], {WORDS: scores}) for part, scores in f1.items()]
    where = "the references" if training is None else "the training text"
    return Breakdown("frequency", f"of words, by how often they occur in {where}", "words of the reference", parts)


def _groups(values: Sequence[float], starts: Sequence[int]) -> list[tuple[int, list[int]]]:
    """The sentences of each part that occurs."""
    groups: dict[int, list[int]] = {}
    for number, value in enumerate(values):
        groups.setdefault(_place(value, starts), []).append(number)
    return sorted(groups.items())


def _place(value: float, starts: Sequence[int]) -> int:
    """The last part that begins at or below a value: 12 is in part 1 of (1, 10, 20)."""
    return max(0, sum(start <= value for start in starts) - 1)


def _label(starts: Sequence[int], place: int) -> str:
    if place + 1 == len(starts):
        return f"{starts[place]}+"
    last = starts[place + 1] - 1
    return str(last) if last == starts[place] else f"{starts[place]}-{last}"


def _scored(label: str, rows: list[int], systems: Sequence[System], measures: Mapping[str, Measure]) -> Part:
    scores = {name: [item.score(system.hypotheses, rows) for system in systems] for name, item in measures.items()}
    return Part(label, len(rows), scores)


@dataclass(frozen=True)
class Change:
    """A sentence of two systems.

    Attributes:
        sentence: its number, from 0.
        before: its score by the first system.
        after: its score by the other system.
    """

    sentence: int
    before: float
    after: float

    @property
    def difference(self) -> float:
        """By how much the other system's score is higher."""
        return self.after - self.before


def changes(first: System, other: System, chrf: Measure, count: int) -> list[Change]:
    """The sentences that changed most, in either direction.

    Args:
        first: the first system.
        other: the other one.
        chrf: the metric; unlike BLEU, chrF is defined for short sentences.
        count: maximum number of sentences.

    Returns:
        Those with the largest differences first; equal outputs are left out.
    """
    pairs = enumerate(zip(first.hypotheses, other.hypotheses, strict=True))
    found = [
        Change(number, chrf.score(first.hypotheses, [number]), chrf.score(other.hypotheses, [number]))
        for number, (before, after) in pairs
        if before != after
    ]
    return sorted(found, key=lambda change: -abs(change.difference))[:count]


def common_words(first: str, other: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The words of two lines, and whether each also occurs, in the same order, in the other line."""
    from difflib import SequenceMatcher

    words, others = first.split(), other.split()
    same = [False] * len(words), [False] * len(others)
    for start, place, size in SequenceMatcher(None, words, others, autojunk=False).get_matching_blocks():
        same[0][start : start + size] = same[1][place : place + size] = [True] * size
    return list(zip(words, same[0], strict=True)), list(zip(others, same[1], strict=True))


@dataclass(frozen=True)
class Options:
    """The options of a comparison.

    Attributes:
        metrics: names of the metrics.
        bootstrap: whether to compute intervals, and the paired bootstrap test.
        randomization: whether to make the approximate randomization test too.
        seed: a positive seed.
        examples: number of changed sentences for each system.
        training: a text in which the words are counted; ``None`` for the references.
    """

    metrics: Sequence[str]
    bootstrap: bool = True
    randomization: bool = True
    seed: int = 1
    examples: int = 10
    training: Sequence[str] | None = None


@dataclass
class Comparison:
    """Systems with their scores.

    Attributes:
        systems: the systems; the others are compared with the first one.
        texts: references, sources and settings.
        options: what was computed.
        results: for each metric, the result of each system.
        signatures: sacreBLEU's signatures by metric.
        lower_is_better: the metrics that are error rates.
        breakdowns: scores of parts of the text.
        changed: for each system after the first, the sentences that changed most.
    """

    systems: list[System]
    texts: Texts
    options: Options
    results: dict[str, list[Tested]]
    signatures: dict[str, str]
    lower_is_better: list[str]
    breakdowns: list[Breakdown] = field(default_factory=list)
    changed: list[list[Change]] = field(default_factory=list)

    def verdict(self, metric: str, number: int) -> str:
        """Judge a system against the first one.

        Args:
            metric: the metric.
            number: the system's number, from 0.

        Returns:
            ``same`` if all sentences have the same scores; ``better`` or ``worse`` if the p-values of all tests are
            below ``LEVEL``; ``unclear`` if one is not; empty without tests and for the first system.
        """
        first, tested = self.results[metric][0], self.results[metric][number]
        values = [value for value in (tested.p_bootstrap, tested.p_randomization) if value is not None]
        if tested.same or not values:
            return "same" if tested.same else ""
        if any(value >= LEVEL for value in values) or tested.score == first.score:
            return "unclear"
        return "better" if (tested.score > first.score) != (metric in self.lower_is_better) else "worse"

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        names = [system.name for system in self.systems]
        return {
            "format": "seqgen-comparison",
            "version": VERSION,
            "systems": names,
            "sentences": len(self.texts.references),
            "references": len(self.texts.every_reference),
            "seed": self.options.seed if self.options.bootstrap else None,
            "metrics": {
                metric: {
                    "signature": self.signatures[metric],
                    "lower_is_better": metric in self.lower_is_better,
                    "systems": [
                        {
                            **vars(tested),
                            "difference": tested.score - results[0].score,
                            "verdict": self.verdict(metric, number) or None,
                        }
                        for number, tested in enumerate(results)
                    ],
                }
                for metric, results in self.results.items()
            },
            "breakdowns": {
                item.name: {"title": item.title, "unit": item.unit, "parts": [vars(part) for part in item.parts]}
                for item in self.breakdowns
            },
            "changed": [
                {"system": names[number], "sentences": [self._changed(number, change) for change in found]}
                for number, found in enumerate(self.changed, start=1)
            ],
        }

    def _changed(self, number: int, change: Change) -> dict[str, Any]:
        line = change.sentence
        return {
            "line": line + 1,
            "chrf": [change.before, change.after],
            "source": self.texts.sources[line] if self.texts.sources else None,
            "references": [text[line] for text in self.texts.every_reference],
            "hypotheses": [self.systems[0].hypotheses[line], self.systems[number].hypotheses[line]],
        }


def compare(systems: Sequence[System], texts: Texts, options: Options) -> Comparison:
    """Compare systems.

    Args:
        systems: at least one; the others are compared with the first one.
        texts: references, sources and settings; ``hypotheses`` is not read.
        options: what to compute.

    Returns:
        The comparison. It has breakdowns if there are sources.

    Raises:
        ConfigError: a metric does not exist or cannot be computed, or there are too many sentences.
    """
    systems = list(systems)
    texts = replace(texts, hypotheses=systems[0].hypotheses)
    every = {name: measure(name, texts) for name in options.metrics}
    measures = {name: item for name, item in every.items() if isinstance(item, Measure)}
    results = untested(systems, every)
    if options.bootstrap and measures:
        results |= paired_tests(systems, measures, options.seed, options.randomization)
    signatures = {name: item.signature for name, item in every.items()}
    lower = [name for name, item in every.items() if item.lower_is_better]
    found = Comparison(systems, texts, options, results, signatures, lower)
    if texts.sources:
        words = _words(texts)
        found.breakdowns.append(by_length(systems, measures, texts.sources, words))
        found.breakdowns.append(by_frequency(systems, texts.references, words, options.training))
        if len(systems) > 1:
            found.breakdowns.append(by_agreement(systems, measures))
    chrf = measures.get("chrf") or measure("chrf", texts)
    if isinstance(chrf, Measure) and options.examples:
        found.changed = [changes(systems[0], other, chrf, options.examples) for other in systems[1:]]
    return found


def _words(texts: Texts) -> Callable[[str], list[str]]:
    """Splits a line into words, with the tokenizer of BLEU."""
    from sacrebleu.metrics import BLEU  # slow to import

    tokenizer = BLEU(tokenize=texts.tokenize, lowercase=texts.lowercase)

    def words(line: str) -> list[str]:
        text: str = tokenizer._preprocess_segment(line)
        return text.split()

    return words


SCORES = ("", "score", "95% interval", "difference", "p boot.", "p rand.")
"""The columns of scores."""
_table = functools.partial(Table, gap=1, whole=range(1, 1000))
_SIGNS = {"better": "▲", "worse": "▼", "same": "=", "unclear": "", "": ""}


def text_report(comparison: Comparison) -> str:
    """The comparison as text.

    Args:
        comparison: what ``compare`` returned.

    Returns:
        Lines of at most 80 columns, except for sentences.
    """
    parts = _parts(comparison)
    for number, found in enumerate(comparison.changed, start=1):
        parts += ["", _title(comparison, number, found)]
        for change in found:
            texts = _texts(comparison, number, change)
            width = max(len(name) for name, _ in texts)
            parts += [_head(change), *(f"  {name:<{width}}  {text}" for name, text in texts)]
    return text_of(parts)


def page(comparison: Comparison, title: str = "Comparison") -> str:
    """The comparison as an HTML page, which marks the words that differ.

    Args:
        comparison: what ``compare`` returned.
        title: the title.
    """
    count, references = len(comparison.texts.references), len(comparison.texts.every_reference)
    parts = [f"{count} sentences, {references} reference(s)", *_parts(comparison)]
    for number, found in enumerate(comparison.changed, start=1):
        parts.append(_title(comparison, number, found))
        for change in found:
            *texts, (first, before), (other, after) = _texts(comparison, number, change)
            words = common_words(before, after)
            marked = [(first, _marked(words[0], "before")), (other, _marked(words[1], "after"))]
            parts.append(Table(["", ""], [*texts, *marked], _head(change), texts=(0, 1)))
    return page_of(title, parts)


def _parts(comparison: Comparison) -> list[Table | str]:
    """The scores, their breakdowns, and what they mean."""
    parts: list[Table | str] = [_table(_columns(comparison), list(_score_rows(comparison)))]
    for item in comparison.breakdowns:
        heads = ["", *(part.label for part in item.parts)]
        parts.append(_table(heads, list(_part_rows(comparison, item)), f"Scores {item.title}"))
    signatures = [f"{name}: {signature}" for name, signature in comparison.signatures.items() if signature]
    return [*parts, "", *signatures, *filter(None, [explanation(comparison)])]


def explanation(comparison: Comparison) -> str:
    """The meaning of the columns of the scores; empty without tests."""
    if not comparison.options.bootstrap:
        return ""
    if len(comparison.systems) == 1:
        return f"95% intervals from bootstrap resampling, seed {comparison.options.seed}."
    return (
        f"▲ better, ▼ worse than {comparison.systems[0].name} with p < {LEVEL} in each test made; "
        f"= equal sentence scores. Seed {comparison.options.seed}."
    )


def _columns(comparison: Comparison) -> Sequence[str]:
    """The columns of scores that are not empty."""
    if len(comparison.systems) == 1:
        return SCORES[: 3 if comparison.options.bootstrap else 2]
    if not comparison.options.bootstrap:
        return (*SCORES[:2], SCORES[3])
    return SCORES if comparison.options.randomization else SCORES[:5]


def _score_rows(comparison: Comparison) -> Iterable[list[str]]:
    """For each metric a row with its name, and one for each system: the cells of ``_columns``."""
    places = [SCORES.index(name) for name in _columns(comparison)]
    for metric, results in comparison.results.items():
        title = f"{metric} (lower is better)" if metric in comparison.lower_is_better else metric
        yield [title, *[""] * (len(places) - 1)]
        for number, tested in enumerate(results):
            sign = _SIGNS[comparison.verdict(metric, number)]
            difference = f"{tested.score - results[0].score:+.2f} {sign:1}" if number else ""
            name = comparison.systems[number].name
            row = f"  {name}", f"{tested.score:.2f}", _interval(tested), difference, *_p_values(tested)
            yield [row[place] for place in places]


def _interval(tested: Tested) -> str:
    if tested.mean is None or tested.interval is None:
        return ""
    return f"{tested.mean - tested.interval:.2f} - {tested.mean + tested.interval:.2f}"


def _p_values(tested: Tested) -> list[str]:
    return ["" if value is None else f"{value:.4f}" for value in (tested.p_bootstrap, tested.p_randomization)]


def _part_rows(comparison: Comparison, item: Breakdown) -> Iterable[Sequence[str]]:
    yield f"{item.unit}", *(str(part.count) for part in item.parts)
    for metric in item.parts[0].scores if item.parts else ():
        yield metric, *[""] * len(item.parts)
        for number, system in enumerate(comparison.systems):
            yield f"  {system.name}", *(f"{part.scores[metric][number]:.2f}" for part in item.parts)


def _title(comparison: Comparison, number: int, found: Sequence[Change]) -> str:
    first, other = comparison.systems[0].name, comparison.systems[number].name
    if not found:
        return f"{other} has the same outputs as {first}"
    return f"The {len(found)} sentences that changed most from {first} to {other}, by chrF"


def _head(change: Change) -> str:
    return f"line {change.sentence + 1}: {change.before:.1f} -> {change.after:.1f} ({change.difference:+.1f})"


def _texts(comparison: Comparison, number: int, change: Change) -> list[tuple[str, str]]:
    """The names and texts of a sentence: source and references, then the outputs of two systems."""
    texts, line = comparison.texts, change.sentence
    found = [("source", texts.sources[line])] if texts.sources else []
    found += [("reference", column[line]) for column in texts.every_reference]
    systems = comparison.systems[0], comparison.systems[number]
    return found + [(system.name, system.hypotheses[line]) for system in systems]


def _marked(words: Sequence[tuple[str, bool]], kind: str) -> Html:
    marks = [("", "") if same else (f'<mark class="{kind}">', "</mark>") for _, same in words]
    pairs = zip(words, marks, strict=True)
    return Html(" ".join(f"{start}{html.escape(word)}{end}" for (word, _), (start, end) in pairs))
