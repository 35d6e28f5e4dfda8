"""Learning-rate schedules, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from seqgen.config import OptimizationConfig
from seqgen.core.errors import ConfigError
from seqgen.registry import LR_SCHEDULERS
from seqgen.training.lr_schedulers import LRScheduler


def schedule(name: str, lr: list[float] | None = None, max_update: int = 0, **options: Any) -> LRScheduler:
    cfg = LR_SCHEDULERS.config(name)
    for key, value in options.items():
        assert hasattr(cfg, key)
        setattr(cfg, key, value)
    optimization = OptimizationConfig(lr=lr if lr is not None else [1.0], max_update=max_update)
    scheduler: LRScheduler = LR_SCHEDULERS.of(cfg).component(cfg, optimization)
    return scheduler


@pytest.mark.parametrize("name", LR_SCHEDULERS.names())
def test_every_schedule_warms_up_in_a_straight_line(name: str) -> None:
    rates = schedule(name, [0.5], max_update=100, warmup_updates=4, warmup_init_lr=0.1)
    assert [rates.lr_at(u, 1) for u in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_inverse_sqrt() -> None:
    rates = schedule("inverse_sqrt", [0.8], warmup_updates=4)
    assert [rates.lr_at(u, 1) for u in (4, 16, 64)] == pytest.approx([0.8, 0.4, 0.2])
    assert schedule("inverse_sqrt", [0.8], warmup_updates=0).lr_at(0, 1) == pytest.approx(0.8)


def test_the_schedule_of_t5() -> None:
    rates = schedule("inverse_sqrt", [0.01], warmup_init_lr=0.01, warmup_updates=10_000)
    assert [rates.lr_at(u, 1) for u in (0, 1, 9999, 10_000, 40_000, 1_000_000)] == pytest.approx(
        [0.01, 0.01, 0.01, 0.01, 0.005, 0.001]
    )


def test_fixed_takes_a_rate_for_each_epoch_and_anneals() -> None:
    rates = schedule("fixed", [0.4, 0.2], force_anneal=4, lr_shrink=0.5)
    assert [rates.lr_at(9, epoch) for epoch in (1, 2, 3, 4, 5)] == pytest.approx([0.4, 0.2, 0.2, 0.1, 0.05])


def test_polynomial() -> None:
    rates = schedule("polynomial", [1.0], max_update=12, warmup_updates=2, end_learning_rate=0.1, power=2.0)
    assert [rates.lr_at(u, 1) for u in (2, 7, 12, 50)] == pytest.approx([1.0, 0.1 + 0.9 * 0.25, 0.1, 0.1])


def test_cosine_spans_the_training() -> None:
    rates = schedule("cosine", [1.0], max_update=12, warmup_updates=2, min_lr=0.2)
    assert [rates.lr_at(u, 1) for u in (2, 7, 12)] == pytest.approx([1.0, 0.6, 0.2])


def test_cosine_restarts_with_shrunken_and_longer_periods() -> None:
    rates = schedule("cosine", [1.0], lr_period_updates=4, t_mult=2.0, lr_shrink=0.5)
    assert [rates.lr_at(u, 1) for u in (0, 2, 4, 8, 12)] == pytest.approx([1.0, 0.5, 0.5, 0.25, 0.25])


def test_plateau_shrinks_after_patience_and_resumes() -> None:
    rates = schedule("reduce_lr_on_plateau", [1.0], lr_patience=1, lr_shrink=0.5)
    for score in (3.0, 2.0, 2.5):
        rates.on_validation(score)
    assert rates.lr_at(0, 1) == 1.0
    resumed = schedule("reduce_lr_on_plateau", [1.0], lr_patience=1, lr_shrink=0.5)
    resumed.load_state_dict(rates.state_dict())
    for one in (rates, resumed):
        one.on_validation(2.0)  # as good as the best is not better
        assert one.lr_at(0, 1) == 0.5


@pytest.mark.parametrize("scores", [(20.0, 17.0, 16.0), (-20.0, -23.0, -24.0)], ids=["loss", "negated"])
def test_plateau_needs_an_improvement_in_proportion(scores: tuple[float, ...]) -> None:
    """By 10 %: from 20 to 17 is enough, from 17 to 16 is not; a score to be maximized is negated."""
    rates = schedule("reduce_lr_on_plateau", [1.0], lr_threshold=0.1, lr_shrink=0.5)
    for score, rate in zip(scores, (1.0, 1.0, 0.5), strict=True):
        rates.on_validation(score)
        assert rates.lr_at(0, 1) == rate


@pytest.mark.parametrize("name", ["polynomial", "cosine"])
def test_a_schedule_with_an_end_must_know_it(name: str) -> None:
    with pytest.raises(ConfigError, match="the length of training"):
        schedule(name)


def test_no_learning_rate() -> None:
    with pytest.raises(ConfigError, match="lr is empty"):
        schedule("fixed", [])
