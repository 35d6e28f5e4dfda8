"""Plots of the JSON files of ``benchmarks.decode``; needs only matplotlib.

python -m benchmarks.decoding.plots FILE.json FOLDER
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

Row = dict[str, Any]
VARIABLES = {
    "batch": "sentences per batch",
    "length": "tokens of the output",
    "beam": "beam",
    "source": "source tokens",
}
CONSTANT = ("model", "batch", "length", "beam", "source")


def plot(file: Path, folder: Path) -> list[Path]:
    """Plot speed and memory against each variable that has at least three values.

    Args:
        file: JSON file of ``benchmarks.decode``.
        folder: folder to write the images to.

    Returns:
        The paths of the images.
    """
    content = json.loads(file.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    images = []
    for variable in VARIABLES:
        for name, rows in curves(content["rows"], variable).items():
            for figure, label, unit in (
                ("tokens_per_second", "tokens per second", 1.0),
                ("bytes_per_hypothesis", "kB per hypothesis", 1e-3),
            ):
                path = folder / f"decode_{content['work']}_{name}_{variable}_{figure.partition('_')[0]}.png"
                if draw(rows, variable, figure, label, unit, path):
                    images.append(path)
    return images


def curves(rows: list[Row], variable: str) -> dict[str, list[Row]]:
    """For each model, rows that differ only in one variable.

    Of all such series, this is the one with the most values; of several, the one whose other values are most frequent.
    """
    others = [name for name in CONSTANT if name != variable]
    frequency = Counter((name, row[name]) for row in rows for name in others)
    series: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        series[tuple(row[name] for name in others)].append(row)
    best: dict[str, tuple[int, int]] = {}
    chosen: dict[str, list[Row]] = {}
    for values, members in series.items():
        rank = (
            len({row[variable] for row in members}),
            sum(frequency[pair] for pair in zip(others, values, strict=True)),
        )
        if rank[0] > 2 and rank > best.get(members[0]["model"], (0, 0)):
            best[members[0]["model"]], chosen[members[0]["model"]] = rank, members
    return chosen


def draw(rows: list[Row], variable: str, figure: str, label: str, unit: float, path: Path) -> bool:
    """Draw one image with a line for each toolkit and dtype; return false if the figure was not measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        if row[figure] and row["same"] is not None:
            lines[f"{row['toolkit']}, {row['format']}"].append((row[variable], row[figure] * unit))
    if not lines:
        return False
    axes = pyplot.figure(figsize=(7, 4.5)).gca()
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    ticks = sorted({row[variable] for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(VARIABLES[variable])
    axes.set_ylabel(label)
    axes.set_title(", ".join(f"{name} {rows[0][name]}" for name in CONSTANT if name != variable and rows[0][name]))
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    axes.figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(axes.figure)
    return True


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(*plot(Path(sys.argv[1]), Path(sys.argv[2])), sep="\n")
