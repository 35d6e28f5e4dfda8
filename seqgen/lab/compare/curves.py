"""Training runs as an HTML page: scores, the keys that differ, and learning curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

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
        text: the validation text, if not all runs have the same.
    """

    name: str
    event: str
    curves: list[list[tuple[int, float]]]
    text: str = ""

    @property
    def title(self) -> str:
        """The value, its event, and the text if it matters."""
        return f"{self.name} ({EVENTS[self.event]}{f' on {self.text}' if self.text else ''})"

    @property
    def logarithmic(self) -> bool:
        """Whether the values are perplexities with a wide range."""
        values = [value for curve in self.curves for _, value in curve]
        return self.name.startswith("ppl") and min(values) > 0 and max(values) / min(values) > _LOG_RANGE


def charts(runs: Sequence[Run]) -> list[Chart]:
    """The charts of runs: validation first, one for each validation text; values that occur only once are left out.

    Args:
        runs: the runs.
    """
    found = []
    for event in EVENTS:
        texts = _validation_texts(runs) if event == "valid" else [""] * len(runs)
        for name in dict.fromkeys(name for run in runs for name in run.values(event)):
            for text in dict.fromkeys(texts):
                own = [run.curve(event, name) if one == text else [] for run, one in zip(runs, texts, strict=True)]
                if any(len(curve) > 1 for curve in own):
                    found.append(Chart(name, event, [_thinned(curve) for curve in own], text))
    return found


def _validation_texts(runs: Sequence[Run]) -> list[str]:
    """The validation text of each run, by its key and its hash if known; empty texts if all runs have the same."""
    names, hashes = [shown(run.config.get("task.valid", "")) for run in runs], [run.data("valid") for run in runs]
    keys = hashes if all(hashes) else names
    labels = {key: f"{name} {key[:8]}" if all(hashes) else name for key, name in zip(keys, names, strict=True)}
    return [labels[key] if len(labels) > 1 else "" for key in keys]


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most about ``POINTS`` points; the last one is kept."""
    step = math.ceil(len(points) / POINTS)
    return points if step < 2 else [*points[:-1:step], points[-1]]


def _line(tag: str, number: int, *children: object, **attributes: object) -> Html:
    """A line with the colour and dashes of the run with this number, from 0."""
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
    return element(tag, *children, **attributes, stroke=colour, stroke_dasharray=dash or None)


def ticks(low: float, high: float, logarithmic: bool = False) -> list[float]:
    """Round values between the ends of an axis: about five, or on a logarithmic scale 1, 2 and 5 of each decade.

    Args:
        low: the smallest value of the axis.
        high: the largest value.
        logarithmic: whether the scale is logarithmic.
    """
    if low == high:
        return [low]
    if logarithmic:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        digits = (1, 2, 5) if len(decades) < 5 else (1,)
        return [value for e in decades for digit in digits if low <= (value := digit * 10.0**e) <= high]
    size = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(size * factor for factor in (1, 2, 5, 10) if (high - low) / (size * factor) <= 5)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def tick_label(value: float) -> str:
    """A value of an axis, such as ``0.5``, ``2000``, ``20k`` or ``1.5M``."""
    unit, letter = next(((u, x) for u, x in ((1e6, "M"), (1e3, "k")) if abs(value) >= max(u, 1e4)), (1, ""))
    return f"{value / unit:.4g}{letter}"


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
    for value in ticks(low, high, chart.logarithmic):
        _, y = place(0, value)
        parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="axis"))
        parts.append(element("text", tick_label(value), x=_LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end"))
    for value in ticks(0, last):
        parts.append(
            element("text", tick_label(value), x=f"{place(value, high)[0]:.1f}", y=_HEIGHT - 8, text_anchor="middle")
        )
    for number, curve in enumerate(chart.curves):
        if curve:
            where = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve))
            tip = element("title", f"{names[number]}: last {curve[-1][1]:.4g} at update {curve[-1][0]}")
            parts.append(_line("polyline", number, tip, points=where, class_=f"curve run-{number}"))
    scaled = ", logarithmic" if chart.logarithmic else ""
    label = f"{chart.title}{scaled}, by update, of {len(names)} runs"
    drawing = element("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=label)
    return element("figure", element("figcaption", f"{chart.title}{scaled}"), drawing)


def page(runs: Sequence[Run], title: str = "Runs") -> str:
    """The page of some runs.

    Args:
        runs: the runs, in their order.
        title: its title.
    """
    names = [run.name for run in runs]
    parts: list[object] = []
    if drawn := charts(runs):
        switches = [_switch(number, name) for number, name in enumerate(names)]
        parts += [
            element("h2", "Learning curves, by update"),
            element("div", *switches, class_="runs"),
            element("div", *(svg(chart, names) for chart in drawn), class_="charts"),
        ]
    scores = score_names(runs)
    caption = "validation scores of the best checkpoint"
    parts += [element("h2", "Scores"), table(score_head(scores), score_rows(runs, scores), caption)]
    if found := differences(runs):
        rows = [
            [
                element("code", key_name(key)),
                *(
                    element("span", shown(value), title=run.origin(key) or None)
                    for run, value in zip(runs, values, strict=True)
                ),
            ]
            for key, values in found.items()
        ]
        parts += [element("h2", "What differs"), table(["key", *names], rows, text_columns=len(names) + 1)]
    script = (resources.files(__package__) / "runs_page.js").read_text(encoding="utf-8")
    return document(title, *parts, script=script)


def _switch(number: int, name: str) -> Html:
    """A check box that shows or hides a run's curves, with the run's line."""
    line = _line("line", number, x1=0, x2=30, y1=6, y2=6, class_="curve")
    box = element("input", type="checkbox", checked=True, data_run=number)
    return element("label", box, element("svg", line, viewBox="0 0 30 12", aria_hidden="true"), f" {name}")
