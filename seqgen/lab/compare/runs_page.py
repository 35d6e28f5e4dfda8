"""Runs as an HTML page: scores, the keys that differ, and learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from seqgen.lab.compare.curves import charts, colour, dash, svg
from seqgen.lab.compare.document import Html, document, element, table
from seqgen.lab.compare.provenance import recorded_origin
from seqgen.lab.compare.run import Run
from seqgen.lab.compare.table import differences, key_name, score_head, score_names, score_rows, shown


def page(runs: Sequence[Run], title: str = "Runs") -> str:
    """The page of some runs.

    Args:
        runs: the runs, in their order.
        title: its title.
    """
    names = [run.name for run in runs]
    scores = score_names(runs)
    parts: list[object] = [
        table(score_head(scores), score_rows(runs, scores), "validation scores of the best checkpoint")
    ]
    found = differences(runs)
    if found:
        rows = [
            [key_name(key), *(_value(run, key, value) for run, value in zip(runs, values, strict=True))]
            for key, values in found.items()
        ]
        parts += [element("h2", "What differs"), table(["key", *names], rows, text_columns=len(names) + 1)]
    drawn = charts(runs)
    if drawn:
        switches = [_switch(number, name) for number, name in enumerate(names)]
        parts += [
            element("h2", "Learning curves, by update"),
            element("div", *switches, class_="runs"),
            element("div", *(svg(chart, names) for chart in drawn), class_="charts"),
        ]
    script = (resources.files(__package__) / "runs_page.js").read_text(encoding="utf-8")
    return document(title, *parts, script=script)


def _value(run: Run, key: str, value: object) -> Html:
    origin = recorded_origin(run.provenance, key, run.config.get(key))
    return element("span", shown(value), title=origin or None)


def _switch(number: int, name: str) -> Html:
    """A check box that shows or hides a run's curves, with the run's line."""
    style = {"stroke": colour(number), "stroke_dasharray": dash(number) or None}
    line = element("line", x1=0, x2=30, y1=6, y2=6, class_="curve", **style)
    box = element("input", type="checkbox", checked=True, data_run=number)
    return element("label", box, element("svg", line, viewBox="0 0 30 12", aria_hidden="true"), f" {name}")
