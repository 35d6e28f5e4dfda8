"""The report of a calibration: its figures equal those of scikit-learn and SciPy, and those by hand."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from seqgen.addons.confidence import report as stats
from seqgen.addons.confidence.report import ConfidenceReport


def sample(count: int = 200, seed: int = 0) -> tuple[Any, Any]:
    """Scores with ties, and qualities that go with them."""
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, 30, count) / 30
    return scores, 100 * (0.5 * scores + 0.5 * draw.random(count)).round(2)


def test_rank_statistics_are_those_of_the_packages() -> None:
    scores, qualities = sample()
    bad = (qualities < 40).astype(float)
    assert stats.rank_correlation(scores, qualities) == pytest.approx(spearmanr(scores, qualities).statistic)
    assert stats.area_under_roc(scores, bad) == pytest.approx(roc_auc_score(bad, -scores))
    assert math.isnan(stats.area_under_roc(scores, np.zeros(200)))
    assert math.isnan(stats.rank_correlation(np.ones(200), qualities))


def test_figures_by_hand() -> None:
    scores = np.array([0.9, 0.1, 0.2, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.95])
    bad = np.array([1.0, 1, 0, 0, 0, 0, 0, 0, 1, 0])
    assert stats.found_by_reading(scores, bad) == pytest.approx(2 / 3)  # the lowest three: 0.1, 0.2, 0.3
    # bins of one line
    assert stats.calibration_error(scores, 1 - bad) == pytest.approx(np.abs(scores - (1 - bad)).mean())
    assert stats.calibration_error(np.full(100, 0.7), np.repeat([1.0, 0.0], 50)) >= 0.2


def test_an_interval_has_the_width_of_the_normal_distribution() -> None:
    values = np.random.default_rng(0).normal(size=400)
    found = stats.estimate(lambda column: float(column.mean()), values)
    assert found.value == values.mean()
    assert found.high - found.low == pytest.approx(2 * 1.96 / 20, rel=0.15)
    assert found.low < found.value < found.high


def test_the_risk_of_unread_lines() -> None:
    qualities = np.array([90.0, 10.0, 80.0, 20.0])
    report = ConfidenceReport({"confidence": np.array([0.9, 0.8, 0.7, 0.1])}, qualities, 50.0, np.array([0, 0, 0, 1.0]))
    assert report.risks(report.scores["confidence"]).tolist() == [0, 1 / 2, 1 / 3, 2 / 4]
    found = report.figures()
    assert found["risk"].value == 1 / 4, "one line of four is unmarked and not good enough"
    assert found["marked"] == 1 / 4
    assert found["good"] == 1 / 2
    assert "25.0% of the lines are marked; unmarked and not good enough: 0.250" in report.text()


def test_most_lines_have_the_highest_quality() -> None:
    qualities = np.array([100.0] * 18 + [10.0, 20.0])
    report = ConfidenceReport({"confidence": np.linspace(1, 0, 20)}, qualities, 100.0)
    assert report.worst.sum() == 2
    assert report.figures()["scores"]["confidence"]["auroc"].value == 1
    same = ConfidenceReport({"confidence": np.linspace(1, 0, 20)}, np.ones(20), 1.0)
    assert same.text().count("not defined") == 3


def test_a_score_that_ranks_better_than_the_confidence_is_named() -> None:
    qualities = np.arange(10.0)
    scores = {"confidence": qualities[::-1], "mean_lprob": qualities, "length": np.ones(10)}
    assert "mean_lprob alone ranks these lines better" in ConfidenceReport(scores, qualities, 5.0).text()
    assert "alone" not in ConfidenceReport(scores | {"confidence": qualities}, qualities, 5.0).text()
