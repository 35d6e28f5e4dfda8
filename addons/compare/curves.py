"""The page of training runs: their learning curves, and their table."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template

from seqgen.addons.compare.runs import Run, shown, text_table

_WIDTH = 240
"""Columns of the table, which can be scrolled."""
_LINES = ("solid", "dashed", "dotted")
"""Kinds of lines, each with ten colours, as matplotlib and CSS call them."""
_LOG_RANGE = 20
"""The scale is logarithmic if the largest value is at least this many times the smallest."""


def page_of_runs(runs: Sequence[Run], by: str = "") -> str:
    """The page of runs.

    Args:
        runs: the runs, in their order.
        by: what they are sorted by.
    """
    from matplotlib.colors import to_hex  # slow to import

    page = Template((resources.files(__package__) / "page.html").read_text(encoding="utf-8"))
    names = []
    for number, run in enumerate(runs):
        line = f"2px {_LINES[number // 10 % len(_LINES)]} {to_hex(f'C{number}')}"
        names.append(f'<li><b style="border-top: {line}"></b> {html.escape(run.name)}</li>')
    figures = [_figure(title, chart) for title, chart in charts(runs).items()]
    table = html.escape(text_table(runs, by, _WIDTH))
    return page.substitute(figures="\n".join(figures), names="\n".join(names), table=table)


def charts(runs: Sequence[Run]) -> dict[str, dict[int, Mapping[int, float]]]:
    """The charts: training loss, and for each validation text the loss and the scores that select checkpoints.

    Args:
        runs: the runs.

    Returns:
        For each title the values at each update by the number of the run, from 0.
    """
    wanted = {("train", "loss"), *(("valid", name) for run in runs for name in ("loss", run.metric.lower()))}
    found, texts = dict[str, dict[int, Mapping[int, float]]](), dict[str, str]()
    for number, run in enumerate(runs):
        name, digest = shown(run.config.get("task.valid", "")), run.data("valid")
        text = texts.setdefault(digest or name, f"{name} {digest[:12]}".rstrip())
        for (event, score), curve in run.curves.items():
            if (event, score.lower()) in wanted:
                title = f"{event}/{score}, {text}" if event == "valid" else f"{event}/{score}"
                found.setdefault(title, {})[number] = curve
    return dict(sorted(found.items()))


def _figure(title: str, chart: Mapping[int, Mapping[int, float]]) -> str:
    """A chart, whose text has the colour of the page's."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes = figure.subplots()
    for number, curve in chart.items():
        axes.plot([*curve], [*curve.values()], color=f"C{number}", linestyle=_LINES[number // 10 % len(_LINES)])
    values = [value for curve in chart.values() for value in curve.values()]
    axes.set_yscale("log" if 0 < _LOG_RANGE * min(values) < max(values) else "linear")
    axes.set_xlabel("updates")
    axes.grid(alpha=0.3)
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue().replace("#000000", "currentColor")
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{svg[svg.index('<svg') :]}</figure>"
