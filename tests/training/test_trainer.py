"""The trainer's arithmetic: the moving average of the weights, and which random numbers a batch gets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from seqgen.core.structures import Batch
from seqgen.training.criteria import CriterionOut
from seqgen.training.distributed import ProcessGroup
from seqgen.training.optimizers import EMA
from seqgen.training.trainer import Trainer, UpdateResult
from seqgen.training.triggers import Triggers
from tests.training_runs import Lab, assert_identical, lab

__all__ = ["lab"]


@pytest.mark.parametrize("decay", [0.2, 0.7, 0.999])
def test_moving_average_equals_the_plain_computation(decay: float) -> None:
    """The warm-up is that of TensorFlow's ``ExponentialMovingAverage``: (1 + n) / (10 + n) after n updates."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 5.0)
    ema, wanted = EMA(model, decay), 5.0
    for before in range(40):
        value = (before * 37 % 11) - 4.0
        nn.init.constant_(model.weight, value)
        ema.update(model, before + 1)
        factor = min(decay, (1 + before) / (10 + before))
        wanted = factor * wanted + (1 - factor) * value
        assert ema.model.weight.item() == pytest.approx(wanted, rel=1e-12), f"after update {before + 1}"


def test_buffers_are_averaged_and_integers_copied() -> None:
    model = nn.BatchNorm1d(2)
    ema = EMA(model, 0.5)
    model.running_mean.fill_(4.0)  # type: ignore[union-attr]
    model.num_batches_tracked.fill_(7)  # type: ignore[union-attr]
    ema.update(model, 100)
    assert ema.model.running_mean.tolist() == [2.0, 2.0]  # type: ignore[union-attr]
    assert int(ema.model.num_batches_tracked) == 7  # type: ignore[arg-type]


def trainer(lab: Lab, group: ProcessGroup, *overrides: str) -> Trainer:
    cfg = lab.config(*overrides)
    task = lab.task(cfg, lab.root / "trainer")
    with mock.patch("seqgen.training.distributed.parallelize", lambda module, *_: module):  # no other rank is there
        return Trainer(cfg, task, task.build_model(cfg.model), torch.device("cpu"), group)


def test_the_criterion_gets_the_number_of_updates(lab: Lab) -> None:
    """Also in the validation after an update, so that a validation that a signal has postponed has the same number."""
    one = trainer(lab, ProcessGroup())
    data = one.task.dataset("train")
    batch = one.task.collate([data.example(i, epoch=1, seed=1) for i in range(4)], one.model)
    for update in (0, 1):
        with one.evaluation():
            assert one.criterion.update == update
        one.train_update([batch], 1)
        assert one.criterion.update == update
    with pytest.raises(AttributeError):
        one.criterion.context.update = 3  # type: ignore[misc]


def test_the_first_update_is_number_one_for_the_average(lab: Lab) -> None:
    """After one update the average is a tenth of the first weights and nine tenths of the new ones."""
    one = trainer(
        lab,
        ProcessGroup(),
        "optimization.ema_decay=0.99",
        "optimization.lr=[1.0]",
        "lr_scheduler=fixed",
        "lr_scheduler.warmup_updates=0",
    )
    before = {name: param.detach().clone() for name, param in one.model.named_parameters()}
    data = one.task.dataset("train")
    batch = one.task.collate([data.example(i, epoch=1, seed=1) for i in range(4)], one.model)
    assert not one.train_update([batch], 1).skipped
    assert one.ema is not None
    averages = dict(one.ema.model.named_parameters())
    moved = 0
    for name, param in one.model.named_parameters():
        torch.testing.assert_close(averages[name], 0.1 * before[name] + 0.9 * param, rtol=1e-5, atol=1e-6)
        moved += not torch.equal(before[name], param)
    assert moved


def test_optimizer_steps_are_updates_with_the_same_batch(lab: Lab) -> None:
    """But they count as one update, have other dropout masks, and their sums are added."""
    keys = ["optimizer=sgd", "lr_scheduler=fixed", "lr_scheduler.warmup_updates=0", "model.dropout=0"]
    one, other = (trainer(lab, ProcessGroup(), *keys) for _ in range(2))
    other.model.load_state_dict(one.model.state_dict())
    data = one.task.dataset("train")
    batch = one.task.collate([data.example(i, epoch=1, seed=1) for i in range(4)], one.model)
    one.criterion.optimizer_steps = 3
    found, wanted = one.train_update([batch], 1), [other.train_update([batch], 1) for _ in range(3)]
    assert (one.update, other.update) == (1, 3)
    assert_identical(one.weights(), other.weights())
    assert found.gnorm == wanted[-1].gnorm
    for name, value in found.sums.items():
        assert value == pytest.approx(sum(each.sums[name] for each in wanted))
    first = random_numbers(one, range(1))
    one._optimizer_step = 0
    assert random_numbers(one, range(1)) != first


def test_a_later_optimizer_step_that_is_skipped(lab: Lab) -> None:
    one = trainer(lab, ProcessGroup(), "optimization.nonfinite_loss=skip")
    data = one.task.dataset("train")
    batch = one.task.collate([data.example(i, epoch=1, seed=1) for i in range(4)], one.model)
    one.criterion.optimizer_steps, original = 3, one.task.train_step

    def step(*given: Any) -> CriterionOut:
        out = original(*given)
        return replace(out, loss=out.loss * math.nan) if one._optimizer_step == 2 else out

    with mock.patch.object(one.task, "train_step", step):
        result = one.train_update([batch], 1)
    assert result.skipped.endswith("3 (numbered from 0), after 2 of its optimizer steps")
    assert one.update == 0


def random_numbers(trainer: Trainer, places: range) -> list[list[float]]:
    """What dropout would draw for the batches of an update of which this process has those at ``places``."""
    drawn = []

    def step(*_: Any) -> CriterionOut:
        drawn.append(torch.rand(4).tolist())
        return CriterionOut(torch.zeros((), requires_grad=True), 1)

    batch = mock.Mock(spec=Batch)
    with mock.patch.object(trainer.task, "train_step", step):
        for place in places:
            trainer._backward(batch, place)
    return drawn


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_draw_what_one_process_draws_for_the_same_batches(lab: Lab, world_size: int) -> None:
    """Batch ``i`` of an update is number ``i // world_size`` of rank ``i % world_size``; dropout depends on ``i``."""
    alone = random_numbers(trainer(lab, ProcessGroup()), range(2 * world_size))
    assert len({tuple(numbers) for numbers in alone}) == 2 * world_size, "no two batches share their dropout masks"
    for rank in range(world_size):
        mine = random_numbers(trainer(lab, ProcessGroup(rank, world_size)), range(2))
        assert mine == [alone[rank], alone[world_size + rank]]


def test_dropout_changes_with_the_update_and_the_seed(lab: Lab) -> None:
    one, other = trainer(lab, ProcessGroup()), trainer(lab, ProcessGroup(), "common.seed=2")
    first = random_numbers(one, range(1))
    assert random_numbers(other, range(1)) != first
    one.update = 1
    assert random_numbers(one, range(1)) != first


def test_a_parameter_group_can_scale_its_learning_rate(lab: Lab) -> None:
    one = trainer(lab, ProcessGroup(), "lr_scheduler=fixed", "lr_scheduler.warmup_updates=0", "optimization.lr=[0.5]")
    one.optimizer.param_groups[0]["lr_scale"] = 0.25
    one._step(UpdateResult(lr=0.5))
    assert one.optimizer.param_groups[0]["lr"] == 0.125


def test_remaining_time_at_the_mean_speed(lab: Lab) -> None:
    triggers = Triggers(lab.config())
    assert triggers.seconds_left(30, 120, 60.0) == 180.0
    assert triggers.seconds_left(30, None, 60.0) is None
    assert Triggers(lab.config("optimization.stop_time_hours=0.05")).seconds_left(30, 120, 60.0) == 120.0


def test_each_update_has_its_own_gradient(lab: Lab) -> None:
    """With a learning rate of zero and no dropout, the same batch gives the same gradient in every update."""
    one = trainer(lab, ProcessGroup(), "optimization.lr=[0.0]", "model.dropout=0.0")
    data = one.task.dataset("train")
    batch = one.task.collate([data.example(i, epoch=1, seed=1) for i in range(4)], one.model)
    first, second = (one.train_update([batch], 1).gnorm for _ in range(2))
    assert first == pytest.approx(second, rel=1e-6)
