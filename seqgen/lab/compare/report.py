"""A comparison as text of at most 80 columns, and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from rich.table import Table

from seqgen.lab.compare.breakdown import Breakdown
from seqgen.lab.compare.comparison import Change, Comparison, common_words
from seqgen.lab.compare.document import Html, document, element, rich_table, table, text_lines
from seqgen.lab.compare.significance import LEVEL, Tested

SCORES = ("", "score", "95% interval", "difference", "p boot.", "p rand.")
"""The columns of scores."""
_table = partial(rich_table, gap=1, whole=range(1, 1000))
_SIGNS = {"better": "▲", "worse": "▼", "same": "=", "unclear": "", "": ""}


def text_report(comparison: Comparison) -> str:
    """The comparison as text.

    Args:
        comparison: what ``compare`` returned.

    Returns:
        Lines of at most 80 columns, except for sentences.
    """
    rows = [cells for _, cells in _score_rows(comparison)]
    parts: list[Table | str] = [_table(_columns(comparison), rows)]
    for item in comparison.breakdowns:
        parts += [f"\nScores {item.title}", _table(["", *_heads(item)], _part_rows(comparison, item))]
    lines = text_lines(*parts, "")
    lines += [f"{name}: {signature}" for name, signature in comparison.signatures.items() if signature]
    lines += [note for note in [explanation(comparison)] if note]
    for number, found in enumerate(comparison.changed, start=1):
        lines += ["", _title(comparison, number, found)]
        lines += [line for change in found for line in _change_lines(comparison, number, change)]
    return "\n".join(lines).rstrip()


def page(comparison: Comparison, title: str = "Comparison") -> str:
    """The comparison as an HTML page.

    Args:
        comparison: what ``compare`` returned.
        title: the title.
    """
    count = len(comparison.texts.references)
    parts: list[object] = [
        element("p", f"{count} sentences, {len(comparison.texts.every_reference)} reference(s)", class_="note"),
        element("h2", "Scores"),
        table(_columns(comparison), _page_rows(comparison)),
        *(element("p", note, class_="note") for note in [explanation(comparison)] if note),
        *(element("p", f"{name}: {text}", class_="note") for name, text in comparison.signatures.items() if text),
    ]
    for item in comparison.breakdowns:
        parts += [element("h2", f"Scores {item.title}"), table(["", *_heads(item)], _part_rows(comparison, item))]
    for number, found in enumerate(comparison.changed, start=1):
        parts.append(element("h2", _title(comparison, number, found)))
        parts += [_article(comparison, number, change) for change in found]
    return document(title, *parts)


def explanation(comparison: Comparison) -> str:
    """What the columns of the scores mean; empty without tests."""
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


def _score_rows(comparison: Comparison) -> Iterable[tuple[str | None, list[str]]]:
    """For each metric a row with its name, and one for each system with its verdict: the cells of ``_columns``."""
    places = [SCORES.index(name) for name in _columns(comparison)]
    for metric, results in comparison.results.items():
        title = f"{metric} (lower is better)" if metric in comparison.lower_is_better else metric
        yield None, [title, *[""] * (len(places) - 1)]
        for number, own in enumerate(results):
            verdict = comparison.verdict(metric, number)
            difference = f"{own.score - results[0].score:+.2f} {_SIGNS[verdict]:1}" if number else ""
            name = comparison.systems[number].name
            row = f"  {name}", f"{own.score:.2f}", _interval(own), difference, *_p_values(own)
            yield verdict, [row[place] for place in places]


def _page_rows(comparison: Comparison) -> Iterable[Sequence[object]]:
    head = _columns(comparison)
    for verdict, cells in _score_rows(comparison):
        if verdict is None:
            yield element("strong", cells[0]), *cells[1:]
            continue
        colour = verdict if verdict in ("better", "worse") else None
        yield [
            element("span", cell, class_=colour) if name == "difference" else cell
            for name, cell in zip(head, cells, strict=True)
        ]


def _interval(own: Tested) -> str:
    if own.mean is None or own.interval is None:
        return ""
    return f"{own.mean - own.interval:.2f} - {own.mean + own.interval:.2f}"


def _p_values(own: Tested) -> list[str]:
    return ["" if value is None else f"{value:.4f}" for value in (own.p_bootstrap, own.p_randomization)]


def _heads(item: Breakdown) -> list[str]:
    return [part.label for part in item.parts]


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


def _texts(comparison: Comparison, line: int) -> list[tuple[str, str]]:
    texts = comparison.texts
    found = [("source", texts.sources[line])] if texts.sources else []
    return found + [("reference", column[line]) for column in texts.every_reference]


def _change_lines(comparison: Comparison, number: int, change: Change) -> list[str]:
    line, systems = change.sentence, (comparison.systems[0], comparison.systems[number])
    texts = _texts(comparison, line) + [(system.name, system.hypotheses[line]) for system in systems]
    width = max(len(name) for name, _ in texts)
    head = f"line {line + 1}: {change.before:.1f} -> {change.after:.1f} ({change.difference:+.1f})"
    return [head, *(f"  {name:<{width}}  {text}" for name, text in texts)]


def _article(comparison: Comparison, number: int, change: Change) -> Html:
    line, systems = change.sentence, (comparison.systems[0], comparison.systems[number])
    words = common_words(*(system.hypotheses[line] for system in systems))
    rows: list[object] = []
    for name, text in _texts(comparison, line):
        rows += [element("dt", name), element("dd", text)]
    for system, marked, kind in zip(systems, words, ("before", "after"), strict=True):
        shown = [word if same else element("mark", word, class_=kind) for word, same in marked]
        spaced = [part for word in shown for part in (word, " ")]
        rows += [element("dt", system.name), element("dd", *spaced)]
    verdict = "better" if change.difference > 0 else "worse"
    head = element(
        "h3", f"Line {line + 1}: {change.before:.1f} → {change.after:.1f} ",
        element("span", f"{change.difference:+.1f}", class_=verdict),
    )  # fmt: skip
    return element("article", head, element("dl", *rows))
