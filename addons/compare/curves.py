"""The page of training runs: their scores, what differs, learning curves, and sample translations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from seqgen.addons.compare.runs import Run, differing_columns, highest_first, score_columns, shown
from seqgen.extend import render_template

_SAMPLES = 3
"""Sample translations of each run."""


def page_of_runs(runs: Sequence[Run], by: str = "", folder: Path = Path()) -> str:
    """The page of runs.

    Args:
        runs: the runs, in their order.
        by: what they are sorted by.
        folder: that of the page, from which it links the runs.
    """
    scores = score_columns(runs, by)
    values = {
        "columns": scores | differing_columns(runs),
        "numbers": [*scores][1:],
        "highest_first": highest_first(runs),
        "links": [quote(os.fsencode(os.path.relpath(run.folder, folder))) for run in runs],
        "charts": charts(runs),
        "samples": [{**one, "number": n} for n, run in enumerate(runs) for one in run.samples[:_SAMPLES]],
    }
    return render_template(__package__, "runs.html", runs=runs, by=by.lower(), **values)


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
