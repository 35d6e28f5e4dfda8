"""Frozen parameters: bit-equal after updates, without optimizer state, and other gradients are as without freezing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from seqgen.checkpoints.run_checkpoints import read_weights
from seqgen.core.errors import ConfigError
from seqgen.data.iterator import EpochIterator
from seqgen.training.distributed import ProcessGroup
from seqgen.training.trainer import Trainer
from tests.training_runs import Lab, assert_identical, everything, lab  # noqa: F401

FREEZE = ["encoder.*", "*embed_tokens.weight"]
OPTIMIZERS = ("adam", *(pytest.param(name, marks=pytest.mark.slow) for name in ("nag", "sgd", "adafactor")))


def is_frozen(name: str) -> bool:
    # the output projection is tied to the embedding
    return name.startswith("encoder.") or name in ("decoder.embed_tokens.weight", "decoder.output_projection.weight")


def trainer_of(laboratory: Lab, freeze: Sequence[str], *overrides: str, **optimization: Any) -> Trainer:
    cfg = laboratory.config(*overrides)
    cfg.optimization = replace(cfg.optimization, freeze=list(freeze), **optimization)
    cfg.optimizer.weight_decay = 0.1
    folder = laboratory.root / "shared-task"
    folder.mkdir(exist_ok=True)
    task = laboratory.task(cfg, folder)
    torch.manual_seed(5)
    return Trainer(cfg, task, task.build_model(cfg.model), torch.device("cpu"), ProcessGroup())


def batches(trainer: Trainer) -> list[Any]:
    task, model = trainer.task, trainer.model
    dataset = task.dataset("train")
    return list(EpochIterator(dataset, lambda rows: task.collate(rows, model), max_tokens=400, seed=1, num_workers=0))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_parameters_do_not_change(optimizer: str, lab: Lab) -> None:  # noqa: F811
    trainer = trainer_of(lab, FREEZE, *([] if optimizer == "adam" else [f"optimizer={optimizer}"]), ema_decay=0.9)
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    for batch in batches(trainer)[:3]:
        trainer.train_update([batch], epoch=1)
    assert trainer.ema is not None
    average = trainer.ema.model.state_dict()
    for name, weight in trainer.model.state_dict().items():
        assert torch.equal(weight, before[name]) == is_frozen(name), name
        assert torch.equal(average[name], before[name]) == is_frozen(name), name
    for name, parameter in trainer.model.named_parameters():
        assert (parameter.grad is None) == is_frozen(name), name
    kept = trainer.state_dict()["optimizer"]["state"]
    assert kept or optimizer == "sgd"  # which has no state without momentum
    assert not any(map(is_frozen, kept))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["transformer_tiny", "t5_tiny", "fconv_tiny"])
def test_other_gradients_are_the_same(model: str, lab: Lab) -> None:  # noqa: F811
    """Also where the loss is computed without storing all logits, from a frozen output projection."""
    gradients = []
    for freeze in ([], ["*embed_tokens.weight"]):
        trainer = trainer_of(lab, freeze, f"model={model}")
        trainer.model.eval()  # without dropout
        trainer.task.train_step(batches(trainer)[0], trainer.model, trainer.criterion).loss.backward()
        gradients.append({name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None})
    whole, partial = gradients
    assert {name for name in whole if "embed_tokens" not in name} == set(partial) != set(whole)
    for name, gradient in partial.items():
        torch.testing.assert_close(gradient, whole[name], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_resuming_with_frozen_parameters(lab: Lab) -> None:  # noqa: F811
    keys = f"optimization.freeze=[{','.join(FREEZE)}]"
    whole = lab.train("whole", keys, "optimization.max_update=4")
    lab.train("parts", keys, "optimization.max_update=2")
    parts = lab.train("parts", keys, "optimization.max_update=4")
    assert_identical(everything(parts), everything(whole))
    free = lab.train("free", "optimization.max_update=4")
    assert not torch.equal(*(read_weights(run / "checkpoints" / "last")["encoder.layers.0.fc1.weight"]
                             for run in (free, whole)))  # fmt: skip


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["encodr.*"], r"optimization.freeze: there is no parameter 'encodr.\*' .*did you mean 'encoder.\*'\?"),
        (["encoder.*", "decoder.layer.*"], r"no parameter 'decoder.layer.\*' .*did you mean 'decoder.layers.\*'"),
        (["*"], r"optimization.freeze=\[\*\] leaves no parameter to train; remove a pattern"),
    ],
)
def test_wrong_patterns(patterns: list[str], message: str, lab: Lab) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match=message):
        trainer_of(lab, patterns)
