"""One update: accumulation, clipping, averages of weights, random numbers, frozen parameters, and updates left out."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from seqgen.config.compose import compose
from seqgen.extend import Batch, ResourceError, TrainConfig
from seqgen.training.criteria import CriterionOut, LabelSmoothedCrossEntropyCriterion
from seqgen.training.observers import EMA
from seqgen.training.trainer import NonFiniteError, Trainer, UpdateResult
from tests.training_runs import Lab, assert_identical, batch_of

AT_ONCE = ("lr_scheduler=fixed", "lr_scheduler.warmup_updates=0")
"""The first update has the whole learning rate."""


def test_accumulated_batches_are_one_large_batch(lab: Lab) -> None:
    """The gradient is that of the mean over all tokens, however they are spread over batches."""
    parts: list[list[Any]] = []
    for size in (9, 3):
        one = lab.trainer("model.dropout=0.0", "optimizer=sgd", "optimization.clip_norm=0")
        one.model.double()
        result = one.train_update([batch_of(one, range(begin, begin + size)) for begin in range(0, 9, size)], epoch=9)
        targets = (one.task.dataset("train").example(row, epoch=1, seed=1).target for row in range(9))
        assert result.sums["sample_size"] == sum(map(len, targets))
        gradients = [param.grad for param in one.params]
        parts.append([torch.tensor([result.gnorm, result.sums["loss"]], dtype=torch.float64), *gradients])
    for found, wanted in zip(*parts, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("clip", [0.0, 0.01, 100.0])
def test_clipping(lab: Lab, clip: float) -> None:
    one = lab.trainer(f"optimization.clip_norm={clip}")
    result = one.train_update([batch_of(one)], epoch=1)
    norm = math.sqrt(sum(param.grad.square().sum().item() for param in one.params if param.grad is not None))
    assert norm == pytest.approx(min(result.gnorm, clip) if clip else result.gnorm, rel=1e-3)


def test_each_update_has_its_own_gradient(lab: Lab) -> None:
    """With a learning rate of zero and no dropout, the same batch gives the same gradient in every update."""
    one = lab.trainer("optimization.lr=[0.0]", "model.dropout=0.0")
    first, second = (one.train_update([batch_of(one)], 1).gnorm for _ in range(2))
    assert first == pytest.approx(second, rel=1e-6)


def test_the_average_follows_the_weights(lab: Lab) -> None:
    """The warm-up is that of TensorFlow's ``ExponentialMovingAverage``: (1 + n) / (10 + n) after n updates."""
    one = lab.trainer("optimization.lr=[0.1]", *AT_ONCE)
    ema = EMA(one, 0.25)
    wanted = {name: param.detach().double() for name, param in one.model.named_parameters()}
    for before in range(6):
        ema.update(one, one.train_update([batch_of(one)], epoch=1))
        decay = min(0.25, (1 + before) / (10 + before))
        for name, param in one.model.named_parameters():
            wanted[name] = decay * wanted[name] + (1 - decay) * param.detach()
            torch.testing.assert_close(one.weights()[name].double(), wanted[name], rtol=1e-5, atol=1e-6)
    assert not torch.equal(param, one.weights()[name])


def test_buffers_are_averaged_and_integers_copied() -> None:
    model, one = nn.BatchNorm1d(2), mock.MagicMock(sharded=False, update=100)
    one.plain().__enter__.return_value = one.model = model
    ema = EMA(one, 0.5)
    model.running_mean.fill_(4.0)  # type: ignore[union-attr]
    model.num_batches_tracked.fill_(7)  # type: ignore[union-attr]
    ema.update(one, UpdateResult())
    assert ema.model.running_mean.tolist() == [2.0, 2.0]
    assert int(ema.model.num_batches_tracked) == 7


def test_the_criterion_gets_the_number_of_updates(lab: Lab) -> None:
    """Also in the validation after an update, so that a validation that a signal has postponed has the same number."""
    one = lab.trainer()
    for update in (0, 1):
        with one.evaluation():
            assert one.criterion.update == update
        one.train_update([batch_of(one)], 1)
        assert one.criterion.update == update
    with pytest.raises(AttributeError):
        one.criterion.context.update = 3  # type: ignore[misc]


# -- random numbers, and several optimizer steps ------------------------------------------------------------------


def random_numbers(trainer: Trainer, places: Iterable[int]) -> list[list[float]]:
    """What dropout would draw for the batches of an update of which this process has those at ``places``."""
    drawn = []

    def step(*_: Any) -> CriterionOut:
        drawn.append(torch.rand(4).tolist())
        return CriterionOut(torch.zeros((), requires_grad=True), 1)

    with mock.patch.object(trainer.task, "train_step", step):
        for place in places:
            trainer._backward(mock.Mock(spec=Batch), place)
    return drawn


def test_no_batches_share_their_dropout_masks(lab: Lab) -> None:
    """In one update, in two, and with another seed; that ranks draw what one process draws says test_parallel."""
    one, other = lab.trainer(), lab.trainer("common.seed=2")
    drawn = random_numbers(one, range(3)) + random_numbers(other, [0])
    one.update = 1
    drawn += random_numbers(one, [0])
    assert len({*map(tuple, drawn)}) == 5


def test_optimizer_steps_are_updates_with_the_same_batch(lab: Lab) -> None:
    """But they count as one update, have other dropout masks, and their sums are added."""
    one, other = (lab.trainer("optimizer=sgd", "model.dropout=0", *AT_ONCE) for _ in range(2))
    batch, one.criterion.optimizer_steps = batch_of(one), 3
    found, wanted = one.train_update([batch], 1), [other.train_update([batch], 1) for _ in range(3)]
    assert (one.update, other.update) == (1, 3)
    assert_identical(one.weights(), other.weights())
    assert found.gnorm == wanted[-1].gnorm
    for name, value in found.sums.items():
        assert value == pytest.approx(sum(each.sums[name] for each in wanted))
    first = random_numbers(one, [0])
    one._optimizer_step = 0
    assert random_numbers(one, [0]) != first


# -- updates that are left out ------------------------------------------------------------------------------------


@pytest.fixture
def nan_at(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Updates, from 1, whose loss is NaN."""
    places: set[int] = set()
    original = Trainer._backward

    def poisoned(self: Trainer, batch: Any, *given: Any) -> Any:
        out = original(self, batch, *given)
        return replace(out, loss=out.loss * math.nan) if self.update + 1 in places else out

    monkeypatch.setattr(Trainer, "_backward", poisoned)
    return places


def test_a_loss_that_is_not_finite_stops(lab: Lab, nan_at: set[int]) -> None:
    nan_at.add(5)
    with pytest.raises(NonFiniteError, match=r"update 5: the loss is nan on a batch with the sentences \d+, \d+.*skip"):
        lab.train("nan", "optimization.max_update=8")


def test_a_gradient_that_is_not_finite_stops(lab: Lab) -> None:
    one = lab.trainer()
    one.params[0].register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(NonFiniteError, match=r"the gradient's norm is (inf|nan) on the sentences 0, 1, 2, 3 "):
        one.train_update([batch_of(one)], epoch=1)


def test_a_loss_that_is_not_finite_can_be_skipped(lab: Lab, nan_at: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights stay, and a resumed run goes on counting how often in a row."""
    monkeypatch.setattr("seqgen.training.trainer.SKIPS", 4)
    one = lab.trainer("optimization.nonfinite_loss=skip")
    batch = batch_of(one)
    assert not one.train_update([batch], epoch=1).skipped
    before = {name: weight.clone() for name, weight in one.weights().items()}
    nan_at |= {2, 3}
    assert one.train_update([batch], epoch=1).skipped
    assert one.update == 1
    assert_identical(one.weights(), before)
    nan_at.remove(2)
    assert not one.train_update([batch], epoch=1).skipped
    for _ in range(3):
        assert one.train_update([batch], epoch=1).skipped
    again = lab.trainer("optimization.nonfinite_loss=skip")
    again.load_state_dict(one.weights(), one.state_dict(), "the checkpoint")
    with pytest.raises(NonFiniteError, match="4 times in a row"):
        again.train_update([batch], epoch=1)


@pytest.mark.parametrize("backward", [False, True])
def test_an_update_without_memory_is_skipped(
    lab: Lab, backward: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the key, training stops, and the message names the key."""
    original = LabelSmoothedCrossEntropyCriterion.__call__

    def short_of_memory(_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    def call(self: Any, model: Any, batch: Batch) -> CriterionOut:
        out = original(self, model, batch)
        if model.training and 5 in batch.ids.tolist():
            if not backward:
                short_of_memory(out)
            out.loss.register_hook(short_of_memory)
        return out

    monkeypatch.setattr(LabelSmoothedCrossEntropyCriterion, "__call__", call)
    keys = ["common.log_format=lines", "optimization.max_update=6"]
    with pytest.raises(ResourceError, match=r"memory ran out in update \d+; optimization.out_of_memory=skip skips"):
        lab.train(f"stopped-{backward}", *keys)
    lab.train(f"stopped-{backward}", *keys, "optimization.out_of_memory=skip")
    said = capsys.readouterr().err
    assert re.search(r"update \d+ was skipped: memory ran out on a batch with the sentences .*\b5\b.*numbered", said)


# -- frozen parameters --------------------------------------------------------------------------------------------

FREEZE = "optimization.freeze=[encoder.*,'*embed_tokens.weight']"


def is_frozen(name: str) -> bool:
    # the output projection is tied to the embedding
    return name.startswith("encoder.") or name in ("decoder.embed_tokens.weight", "decoder.output_projection.weight")


@pytest.mark.parametrize("optimizer", ["adam", "nag", "sgd", "adafactor"])
def test_frozen_parameters_do_not_change(optimizer: str, lab: Lab) -> None:
    """Bit-equal after updates with weight decay, without gradient and without state of the optimizer."""
    one = lab.trainer(FREEZE, f"optimizer={optimizer}", "optimizer.weight_decay=0.1")
    ema = EMA(one, 0.9)
    before = {name: weight.clone() for name, weight in one.model.state_dict().items()}
    for row in range(3):
        ema.update(one, one.train_update([batch_of(one, [row, 9])], epoch=1))
    for weights in (one.model.state_dict(), one.weights()):
        assert {name for name in before if torch.equal(weights[name], before[name])} == {*filter(is_frozen, before)}
    for name, parameter in one.model.named_parameters():
        assert (parameter.grad is None) == is_frozen(name), name
    kept = one.state_dict()["optimizer"]["state"]
    assert kept or optimizer == "sgd"  # which has no state without momentum
    assert not any(map(is_frozen, kept))


@pytest.mark.parametrize("start", [1, 2])
def test_a_start_embedding_that_is_padding_stays_zero(start: int, lab: Lab) -> None:
    """The gradient of label smoothing is that of the tied output layer."""
    one = lab.trainer(f"model.decoder_start_token_id={start}")
    pad = one.task.target_dictionary.pad()
    for row in range(3):
        one.train_update([batch_of(one, [row, 9])], epoch=1)
    assert one.model.decoder.embed_tokens.weight[pad].any() == (start != pad)


def test_the_last_update_is_a_default_only_where_nothing_else_ends_training(lab: Lab) -> None:
    def last(*keys: str) -> int:
        return compose(TrainConfig, keys).optimization.last_update()

    assert last() > 0
    assert last("optimization.stop_time_hours=5") == last("optimization.max_epoch=2") == 0
    assert last("optimization.max_update=7", "optimization.stop_time_hours=5") == 7
