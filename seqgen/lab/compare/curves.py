"""Training runs as an HTML page: scores, the keys that differ, and learning curves, also as a PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from seqgen.errors import ConfigError
from seqgen.lab.compare.document import Html, document, element, table
from seqgen.lab.compare.run import Run
from seqgen.lab.compare.table import differences, key_name, score_head, score_names, score_rows, shown

EVENTS = {"valid": "validation", "train": "training"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#a0781e")
"""Colours that colour-blind readers can tell apart (Okabe and Ito 2008), with two more."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""How the lines of runs with the same colour are drawn."""
POINTS = 400
"""Maximum number of points of a curve."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 460, 240, 52, 26, 8, 10
_LOG_RANGE = 20
"""Perplexities whose largest is so many times the smallest are drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Chart:
    """The curves of one value.

    Attributes:
        name: the name of the value.
        event: ``train`` or ``valid``.
        curves: the points of each run, update and value; empty if the run has none.
    """

    name: str
    event: str
    curves: list[list[tuple[int, float]]]

    @property
    def title(self) -> str:
        """The value and its event."""
        return f"{self.name} ({EVENTS[self.event]})"

    @property
    def logarithmic(self) -> bool:
        """Whether the values are perplexities with a wide range."""
        values = [value for curve in self.curves for _, value in curve]
        return self.name.startswith("ppl") and min(values) > 0 and max(values) / min(values) > _LOG_RANGE


def charts(runs: Sequence[Run]) -> list[Chart]:
    """The charts of runs: validation first; values that occur only once are left out.

    Args:
        runs: the runs.
    """
    found = []
    for event in EVENTS:
        for name in dict.fromkeys(name for run in runs for name in run.values(event)):
            curves = [_thinned(run.curve(event, name)) for run in runs]
            if any(len(curve) > 1 for curve in curves):
                found.append(Chart(name, event, curves))
    return found


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most about ``POINTS`` points; the last one is kept."""
    step = math.ceil(len(points) / POINTS)
    return points if step < 2 else [*points[:-1:step], points[-1]]


def colour(number: int) -> str:
    """The colour of the run with this number, from 0."""
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> str:
    """How its line is dashed."""
    return DASHES[number // len(COLOURS) % len(DASHES)]


def _line(tag: str, number: int, *children: object, **attributes: object) -> Html:
    """A line with the colour and dashes of a run."""
    return element(tag, *children, **attributes, stroke=colour(number), stroke_dasharray=dash(number) or None)


def svg(chart: Chart, names: Sequence[str]) -> Html:
    """A chart as SVG.

    Args:
        chart: the curves.
        names: the names of the runs.
    """
    points = [point for curve in chart.curves for point in curve]
    low, high = min(y for _, y in points), max(y for _, y in points)
    last = max(x for x, _ in points) or 1
    scale = math.log if chart.logarithmic else float
    span = (scale(high) - scale(low)) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + x / last * (_WIDTH - _LEFT - _RIGHT)
        return across, _TOP + (scale(high) - scale(y)) / span * (_HEIGHT - _TOP - _BOTTOM)

    parts: list[Html] = []
    for share in (0, 0.5, 1):
        value = scale(low) + share * span
        value = math.exp(value) if chart.logarithmic else value
        _, y = place(0, value if low != high else low)
        parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="axis"))
        parts.append(element("text", f"{value:.4g}", x=_LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end"))
        x, _ = place(share * last, high)
        anchor = "end" if share == 1 else "middle" if share else "start"
        parts.append(element("text", f"{share * last:.0f}", x=f"{x:.1f}", y=_HEIGHT - 8, text_anchor=anchor))
    for number, curve in enumerate(chart.curves):
        if curve:
            where = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve))
            tip = element("title", f"{names[number]}: last {curve[-1][1]:.4g} at update {curve[-1][0]}")
            parts.append(_line("polyline", number, tip, points=where, class_=f"curve run-{number}"))
    scaled = ", logarithmic" if chart.logarithmic else ""
    label = f"{chart.title}{scaled}, by update, of {len(names)} runs"
    drawing = element("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=label)
    return element("figure", element("figcaption", f"{chart.title}{scaled}"), drawing)


def write_png(path: Path, runs: Sequence[Run]) -> None:
    """Draw the charts into a PNG file.

    Args:
        path: the file.
        runs: the runs.

    Raises:
        ConfigError: matplotlib is not installed, or there is nothing to draw.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("png needs a package: pip install matplotlib; page=FILE.html needs none") from None
    found = charts(runs)
    if not found:
        raise ConfigError(f"png={path}: the runs have no learning curves yet; remove it")
    columns = min(3, len(found))
    rows = math.ceil(len(found) / columns)
    figure = Figure(figsize=(5 * columns, 3.2 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for chart, axis in zip(found, axes, strict=False):
        for number, curve in enumerate(chart.curves):
            line = "-" if not dash(number) else (0, tuple(map(int, dash(number).split())))
            axis.plot(*zip(*curve, strict=True) if curve else ((), ()), color=colour(number), linestyle=line)
        axis.set(title=chart.title, yscale="log" if chart.logarithmic else "linear")
    for axis in list(axes):
        axis.remove()
    lines = figure.axes[0].get_lines()
    figure.legend(lines, [run.name for run in runs], loc="outside upper center", ncols=min(len(runs), 4))
    figure.savefig(path, dpi=120)


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
            [
                key_name(key),
                *(
                    element("span", shown(value), title=run.origin(key) or None)
                    for run, value in zip(runs, values, strict=True)
                ),
            ]
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


def _switch(number: int, name: str) -> Html:
    """A check box that shows or hides a run's curves, with the run's line."""
    line = _line("line", number, x1=0, x2=30, y1=6, y2=6, class_="curve")
    box = element("input", type="checkbox", checked=True, data_run=number)
    return element("label", box, element("svg", line, viewBox="0 0 30 12", aria_hidden="true"), f" {name}")
