"""A comparison as text of at most 80 columns, and as a page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from functools import partial

from seqgen.lab.compare.comparison import Breakdown, Change, Comparison, common_words
from seqgen.lab.compare.document import Html, Table, page_of, text_of
from seqgen.lab.compare.significance import LEVEL, Tested

SCORES = ("", "score", "95% interval", "difference", "p boot.", "p rand.")
"""The columns of scores."""
_table = partial(Table, gap=1, whole=range(1, 1000))
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
