"""How well a confidence predicts the quality of outputs: ranks, probabilities, and the risk of unread lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from seqgen.extend import Matrix, new_file

RESAMPLES = 500
BINS = 10
"""Groups of lines, of equal size, whose mean confidence is compared with their share of good outputs."""
READ = 0.3
"""The share of lines that a person reads, for which the share of the worst quarter among them is reported."""

PICTURES = (".svg", ".png", ".pdf")
"""Endings of the names of pictures."""


class Estimate(NamedTuple):
    """A figure with the interval that holds 95% of its bootstrap resamples; not a number if it is not defined."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return "not defined" if math.isnan(self.value) else f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate(statistic: Callable[..., float], *columns: Matrix) -> Estimate:
    """Compute a statistic of lines and its interval.

    Args:
        statistic: receives the columns of some lines.
        columns: ``(N,)`` each.
    """
    draw, count = numpy.random.default_rng(1), len(columns[0])
    resamples = draw.integers(count, size=(RESAMPLES, count))
    values = [statistic(*(column[rows] for column in columns)) for rows in resamples]
    low, high = numpy.nanquantile(values, [0.025, 0.975]) if not numpy.isnan(values).all() else (math.nan, math.nan)
    return Estimate(float(statistic(*columns)), float(low), float(high))


def rank_correlation(scores: Matrix, qualities: Matrix) -> float:
    """Spearman's rank correlation."""
    from scipy.stats import rankdata  # slow to import

    ranks = [rankdata(one) - (len(one) + 1) / 2 for one in (scores, qualities)]
    norm = math.sqrt(float((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / norm if norm else math.nan


def area_under_roc(scores: Matrix, bad: Matrix) -> float:
    """The probability that a bad line has a lower score than another one; ties count one half."""
    from scipy.stats import rankdata

    count = float(bad.sum())
    if count in (0, len(bad)):
        return math.nan
    below = float(rankdata(-scores)[bad > 0].sum()) - count * (count + 1) / 2
    return below / (count * (len(bad) - count))


def found_by_reading(scores: Matrix, bad: Matrix) -> float:
    """The share of the bad lines that are among the ``READ`` lines with the lowest scores."""
    lowest = numpy.argsort(scores, kind="stable")[: round(READ * len(scores))]
    return float(bad[lowest].sum() / bad.sum()) if bad.sum() else math.nan


def calibration_error(confidences: Matrix, good: Matrix) -> float:
    """The mean over ``BINS`` bins of the difference between mean confidence and share of good outputs."""
    order = numpy.argsort(confidences, kind="stable")
    bins = numpy.array_split(order, min(BINS, len(order)))
    return float(sum(len(rows) * abs(confidences[rows].mean() - good[rows].mean()) for rows in bins) / len(order))


@dataclass(frozen=True)
class ConfidenceReport:
    """The figures for some lines that the calibration has not seen.

    Attributes:
        scores: ``(N,)`` scores by name: the confidence and what it is compared with; higher for better outputs.
        qualities: ``(N,)`` the quality of each output.
        quality: the quality from which an output is good enough.
        marked: ``(N,)`` 1 for lines that are marked for a person; ``None`` if none are.
    """

    scores: Mapping[str, Matrix]
    qualities: Matrix
    quality: float
    marked: Matrix | None = None

    @property
    def worst(self) -> Matrix:
        """``(N,)`` 1 for the worst quarter of the lines; for fewer if most lines have the same, highest quality."""
        level = numpy.quantile(self.qualities, 0.25)
        if (self.qualities > level).any():
            return (self.qualities <= level).astype(float)
        return (self.qualities < level).astype(float)

    def figures(self) -> dict[str, Any]:
        """All figures, as JSON."""
        good = (self.qualities >= self.quality).astype(float)
        kinds = {
            "spearman": (rank_correlation, self.qualities),
            "auroc": (area_under_roc, self.worst),
            "found": (found_by_reading, self.worst),
        }
        found: dict[str, Any] = {"lines": len(good), "quality": self.quality, "good": float(good.mean())}
        found["scores"] = {
            name: {kind: estimate(statistic, score, other) for kind, (statistic, other) in kinds.items()}
            for name, score in self.scores.items()
        }
        found["mean_confidence"] = float(self.scores["confidence"].mean())
        found["calibration_error"] = estimate(calibration_error, self.scores["confidence"], good)
        if self.marked is not None:
            found["marked"] = float(self.marked.mean())
            missed = (1 - self.marked) * (1 - good)
            found["risk"] = estimate(lambda lines: float(lines.mean()), missed)
        return found

    def risks(self, score: Matrix) -> Matrix:
        """For each number of unread lines, from 1 to ``N``, the share of them that are not good enough.

        Args:
            score: ``(N,)``; lines with the highest ones are unread.
        """
        bad = (self.qualities < self.quality)[numpy.argsort(-score, kind="stable")]
        shares: Matrix = bad.cumsum() / numpy.arange(1, len(bad) + 1)
        return shares

    def draw(self, path: Path) -> None:
        """Draw the risk of unread lines against their share.

        Args:
            path: the file; its name ends in one of ``PICTURES``.
        """
        from matplotlib.figure import Figure  # slow to import

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        coverage = numpy.arange(1, len(self.qualities) + 1) / len(self.qualities)
        for name, score in self.scores.items():
            axes.plot(coverage, self.risks(score), label=name)
        axes.set(xlabel="share of unread lines", ylabel="share of them that are not good enough")
        axes.set(xlim=(0, 1), ylim=(0, None))
        axes.legend()
        with new_file(path) as file:
            figure.savefig(file, format=path.suffix[1:])

    def text(self) -> str:
        """The figures for people."""
        found = self.figures()
        lines = [
            f"{found['lines']} lines, of which {found['good']:.1%} reach the quality {found['quality']:.2f}",
            f"mean confidence {found['mean_confidence']:.1%}, calibration error {found['calibration_error']}",
            f"{'':12} {'Spearman':24} {'AUROC of worst quarter':24} worst quarter in {READ:.0%} of the lines",
        ]
        lines += [
            f"{name:12} " + " ".join(f"{kinds[kind]!s:24}" for kind in ("spearman", "auroc", "found")).rstrip()
            for name, kinds in found["scores"].items()
        ]
        ranks = {name: kinds["spearman"].value for name, kinds in found["scores"].items()}
        if (best := max(ranks, key=ranks.__getitem__)) != "confidence":
            lines.append(
                f"{best} alone ranks these lines better than the confidence does (Spearman {ranks[best]:.2f} against "
                f"{ranks['confidence']:.2f}); calibrate with more lines, or with fewer generation.quality_features"
            )
        if "risk" in found:
            lines.append(
                f"{found['marked']:.1%} of the lines are marked; unmarked and not good enough: {found['risk']}"
            )
        return "\n".join(lines)
