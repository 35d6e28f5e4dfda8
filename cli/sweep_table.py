"""The table that ends a sweep: what each run scored, the best first."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from seqgen.lab.compare.run import read_log
from seqgen.training.run_scores import lower_is_better


def sweep_table(runs: Sequence[tuple[str, Path]], metric: str) -> str:
    """Make the table.

    Args:
        runs: the name and the folder of each run.
        metric: the validation score that ranks checkpoints.

    Returns:
        Lines with the best score of each run, its update, the run's training time, and its name.
    """
    sign = 1 if lower_is_better(metric) else -1
    rows = [(name, *_best(folder, metric, sign)) for name, folder in runs]
    rows.sort(key=lambda row: float("inf") if row[1] is None else sign * row[1])
    out = io.StringIO()
    print(f"{'best ' + metric:>12} {'update':>8} {'seconds':>9}  run", file=out)
    for name, score, update, seconds in rows:
        print(f"{'-' if score is None else f'{score:.4g}':>12} {update:>8} {seconds:>9.1f}  {name}", file=out)
    return out.getvalue().rstrip()


def _best(folder: Path, metric: str, sign: int) -> tuple[float | None, int, float]:
    """The best score of a run, its update, and the seconds of training."""
    best: tuple[float | None, int] = None, 0
    seconds = 0.0
    for record in read_log(folder):
        values = {name.lower(): value for name, value in record.items()}
        score = values.get(metric.lower()) if record.get("event") == "valid" else None
        if score is not None and (best[0] is None or sign * score < sign * best[0]):
            best = float(score), int(record["update"])
        if record.get("event") == "stop":
            seconds = float(record["seconds"])
    return *best, seconds
