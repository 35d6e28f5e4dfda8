"""Learning-rate schedules, against numbers worked out by hand."""

import json
from typing import Any

import pytest

from seqgen.config import OptimizationConfig
from seqgen.registry import LR_SCHEDULERS
from seqgen.training.lr_schedulers import LRScheduler


def schedule(name: str, lr: tuple[float, ...] = (1.0,), max_update: int = 0, **options: Any) -> LRScheduler:
    cfg = LR_SCHEDULERS.config(name)
    for key, value in options.items():
        assert hasattr(cfg, key)
        setattr(cfg, key, value)
    optimization = OptimizationConfig(lr=list(lr), max_update=max_update)
    scheduler: LRScheduler = LR_SCHEDULERS.of(cfg).component(cfg, optimization)
    return scheduler


@pytest.mark.parametrize("name", LR_SCHEDULERS.names())
def test_every_schedule_warms_up_in_a_straight_line(name: str) -> None:
    rates = schedule(name, (0.5,), max_update=100, warmup_updates=4, warmup_init_lr=0.1)
    assert [rates.lr_at(u, 1) for u in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


T5 = {"lr": [0.01], "warmup_init_lr": 0.01, "warmup_updates": 10_000}
TEN = {"max_update": 12, "warmup_updates": 2}
PERIODS = {"lr_period_updates": 4, "t_mult": 2.0, "lr_shrink": 0.5}


@pytest.mark.parametrize(
    ("name", "keys", "rates"),
    [
        ("inverse_sqrt", {"lr": [0.8], "warmup_updates": 4}, {4: 0.8, 16: 0.4, 64: 0.2}),
        ("inverse_sqrt", {"lr": [0.8], "warmup_updates": 0}, {0: 0.8, 1: 0.8, 4: 0.4}),
        ("inverse_sqrt", T5, {0: 0.01, 9999: 0.01, 10_000: 0.01, 40_000: 0.005, 1_000_000: 0.001}),
        (
            "polynomial",
            {**TEN, "end_learning_rate": 0.1, "power": 2.0},
            {2: 1.0, 7: 0.1 + 0.9 / 4, 12: 0.1, 50: 0.1},
        ),
        ("cosine", {**TEN, "min_lr": 0.2}, {2: 1.0, 7: 0.6, 12: 0.2, 20: 0.2}),
        # restarts, of 4, 8 and 16 updates: the minimum shrinks with the maximum
        ("cosine", PERIODS, {0: 1.0, 2: 0.5, 4: 0.5, 8: 0.25, 12: 0.25, 20: 0.125}),
        ("cosine", {**PERIODS, "min_lr": 0.2}, {0: 1.0, 2: 0.6, 4: 0.5, 8: 0.3, 12: 0.25, 20: 0.15}),
        ("cosine", {**PERIODS, **TEN, "min_lr": 0.2}, {2: 1.0, 4: 0.6, 6: 0.5, 10: 0.3}),
    ],
)
def test_rates_by_hand(name: str, keys: dict[str, Any], rates: dict[int, float]) -> None:
    made = schedule(name, **keys)
    assert {update: made.lr_at(update, 1) for update in rates} == pytest.approx(rates)


def test_fixed_takes_a_rate_for_each_epoch_and_anneals() -> None:
    rates = schedule("fixed", (0.4, 0.2), force_anneal=4, lr_shrink=0.5)
    assert [rates.lr_at(9, epoch) for epoch in (1, 2, 3, 4, 5)] == pytest.approx([0.4, 0.2, 0.2, 0.1, 0.05])


@pytest.mark.parametrize(
    ("keys", "scores", "rates"),
    [
        ({"lr_patience": 1}, (3.0, 2.0, 2.5, 2.0, 2.0, 2.0), (1.0, 1.0, 1.0, 0.5, 0.5, 0.25)),  # as good is not better
        ({"lr_threshold": 0.0}, (2.0, 2.0), (1.0, 0.5)),
        # by 10 %: from 20 to 17 is enough, from 17 to 16 is not; a score to be maximized is negated
        ({"lr_threshold": 0.1}, (20.0, 17.0, 16.0), (1.0, 1.0, 0.5)),
        ({"lr_threshold": 0.1}, (-20.0, -23.0, -24.0), (1.0, 1.0, 0.5)),
    ],
)
def test_plateau_shrinks_after_patience(
    keys: dict[str, Any], scores: tuple[float, ...], rates: tuple[float, ...]
) -> None:
    """Also if it is resumed from its state before each validation."""
    whole = schedule("reduce_lr_on_plateau", lr_shrink=0.5, **keys)
    for score, rate in zip(scores, rates, strict=True):
        resumed = schedule("reduce_lr_on_plateau", lr_shrink=0.5, **keys)
        resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
        for one in (whole, resumed):
            one.on_validation(score)
            assert one.lr_at(0, 1) == rate
