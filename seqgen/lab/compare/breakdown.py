"""Scores of parts of a text: by length of the source, by agreement of the systems, and of words by frequency."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from seqgen.lab.compare.significance import Measure, System

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
