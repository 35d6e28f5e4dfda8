"""What observers of a training are told and can change, groups of parameters, and optimizers of several gradients."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.extending import training_observer  # noqa: F401  # registered
from examples.papers.sharpness_aware import SAM
from seqgen.extend import TrainingObserver, option, register_training_observer
from tests.training_runs import Lab, batch_of, records


@dataclass
class SteeringConfig:
    every: int = option(4, "updates between two changes", minimum=1)
    last: int = option(8, "the update whose validation is the last", minimum=1)


@register_training_observer("steering", config=SteeringConfig)
class Steering(TrainingObserver):
    """Notes what it is told, and uses everything that it can change."""

    state = ("told", "mean")

    def begin(self, run: Any) -> None:
        self.told, self.saved, self.mean = ["begin"], list[str](), (torch.zeros(()), 0.0)
        run.freeze("encoder.*")
        run.validate()

    def epoch(self, run: Any) -> None:
        self.told.append(f"epoch {run.epoch}")

    def update(self, run: Any, result: Any) -> None:
        self.told.append(f"update {run.update}")
        self.mean = 0.9 * self.mean[0] + 0.1 * result.sums["loss"], random.random()
        if run.update % self.cfg.every == 0:
            run.validate()
            run.lr = run.lr / 2
        if run.update == 3:
            run.save()
            run.unfreeze("encoder.layers.*")

    def validation(self, run: Any, result: Any) -> None:
        self.told.append(f"validation {result.scores['loss']} {run.means['loss']} {run.due} {torch.rand(())}")
        if run.update == self.cfg.last:
            run.stop("enough")

    def checkpoint(self, run: Any, path: Path) -> None:
        self.saved.append(path.name)  # it depends on signals, so that the state must not

    def end(self, run: Any, reason: str) -> None:
        self.told.append(reason)


STEERING = "training.observers=[steering] optimizer=sgd checkpoint.save_interval=0 dataset.validate_interval=0"


def test_an_observer_is_told_and_steers(lab: Lab) -> None:
    run = lab.run("steered", STEERING, "common.log_interval=1")
    before = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    changed = []
    make = run.trainer.train_update

    def train_update(*given: Any) -> Any:
        result = make(*given)
        changed.append(
            {name for name, weight in run.model.state_dict().items() if not torch.equal(weight, before[name])}
        )
        return result

    run.trainer.train_update = train_update  # type: ignore[method-assign]
    assert run.run() == 0
    told = run.own_observers["steering"].told  # type: ignore[attr-defined]
    words = "begin epoch update validation update update update validation update epoch update update update validation"
    assert [each.split()[0] for each in told] == [*words.split(), "enough"]  # 5 updates in an epoch
    # the second `last` was asked for, the others follow a better score
    assert run.own_observers["steering"].saved == ["best", "last", "last", "best", "last", "best", "last"]  # type: ignore[attr-defined]
    assert records(run.folder, "stop")[0]["reason"] == "enough"
    rates = [record["lr"] for record in records(run.folder)]
    assert rates[0] < rates[1] < rates[2] < rates[3] > rates[4] == rates[5] == rates[7]  # no longer the warm-up
    assert [any(name.startswith("encoder.") for name in each) for each in changed[:4]] == [False] * 3 + [True]
    assert not any(name.startswith("encoder.") and "layers" not in name for name in changed[-1])


# -- groups of parameters, and parameters that are frozen for a while ---------------------------------------------


@pytest.mark.parametrize(("optimizer", "decay"), [("sgd", "coupled"), ("nag", "decoupled")])
def test_groups_have_rates_and_decays_of_their_own(lab: Lab, optimizer: str, decay: str) -> None:
    """The first pattern that matches a name holds; a tied parameter has one of its names."""
    keys = [f"optimizer={optimizer}", "optimizer.momentum=0", "optimizer.weight_decay=0.5", "optimization.clip_norm=0"]
    groups = "{*.bias:{weight_decay:0},decoder.layers.*:{lr_scale:0.25},decoder.*:{lr_scale:0,weight_decay:2}}"
    one = lab.trainer(*keys, f"optimization.groups={groups}", "lr_scheduler.warmup_updates=0", "optimization.lr=[0.1]")
    before = {name: param.detach().clone() for name, param in one.model.named_parameters()}
    one.train_update([batch_of(one)], epoch=1)
    lr = one.lr_at(1)
    for name, param in one.model.named_parameters():
        scale = 0.25 if name.startswith("decoder.layers.") else 0.0 if name.startswith("decoder.") else 1.0
        scale, weight_decay = (1.0, 0.0) if name.endswith(".bias") else (scale, 0.5)
        rate, start = lr * scale, before[name]
        grad = one.named_params[name].grad
        assert grad is not None
        wanted = start * (1 - rate * weight_decay) - rate * grad
        torch.testing.assert_close(param.detach(), wanted, msg=lambda text, name=name: f"{name}: {text}")
    assert len({group["lr"] for group in one.optimizer.param_groups}) == 3


def test_parameters_are_frozen_for_a_while(lab: Lab) -> None:
    one = lab.trainer("optimization.freeze=[encoder.*:2,decoder.layers.*]", "lr_scheduler.warmup_updates=0")
    before = {name: param.detach().clone() for name, param in one.model.named_parameters()}
    changed = []
    for _ in range(3):
        one.train_update([batch_of(one)], epoch=1)
        changed.append({n.split(".")[0] for n, p in one.model.named_parameters() if not torch.equal(p, before[n])})
    assert changed == [{"decoder"}, {"decoder"}, {"decoder", "encoder"}]
    after = dict(one.model.named_parameters())
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("decoder.layers."))


# -- an optimizer that needs several gradients --------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3])
def test_sharpness_aware_minimization(lab: Lab, parts: int) -> None:
    """Against its formula, with one batch, and with sub-batches of unequal size."""
    keys = ["optimizer.rho=0.3", "optimization.clip_norm=0", "model.dropout=0", "optimization.lr=[0.01]"]
    one = lab.trainer("optimizer=sam", *keys, "lr_scheduler.warmup_updates=0")
    params, rows = one.params, [[0, 1, 2], [3], [4, 5]]
    whole = batch_of(one, [row for part in rows for row in part])

    def gradient() -> list[torch.Tensor]:
        out = one.task.train_step(whole, one.model, one.criterion)
        return list(torch.autograd.grad(out.loss / out.sample_size, params))

    start = [param.detach().clone() for param in params]
    grads = gradient()
    norm = torch.cat([grad.flatten() for grad in grads]).norm()
    with torch.no_grad():
        for param, grad in zip(params, grads, strict=True):
            param.add_(grad, alpha=float(0.3 / norm))
    worst = gradient()
    copies = [torch.nn.Parameter(param) for param in start]
    with torch.no_grad():
        for param, weight in zip(params, start, strict=True):
            param.copy_(weight)
    batches = [whole] if parts == 1 else [batch_of(one, part) for part in rows]
    one.train_update(batches, epoch=1)
    assert isinstance(one.optimizer, SAM)
    torch.testing.assert_close([param.grad for param in params], worst, rtol=1e-3, atol=1e-6)
    for copied, param in zip(copies, params, strict=True):
        copied.grad = param.grad
    torch.optim.AdamW(copies, lr=one.lr_at(1), weight_decay=0.0).step()
    torch.testing.assert_close([param.detach() for param in params], [c.detach() for c in copies])


def test_the_example_trains_one_layer_after_another(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    keys = "training.observers=[unfreezing] dataset.validate_interval_updates=1 checkpoint.best_checkpoint_metric=ppl"
    run = lab.run("unfreezing", keys, "common.log_format=lines optimization.lr=[0] optimization.max_update=3")
    assert run.run() == 0
    assert "encoder.layers.0 is trained from now on" in capsys.readouterr().err
    assert not any(name.startswith("encoder.layers.0.") for name in run.trainer.frozen)
