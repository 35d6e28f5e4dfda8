"""Optimizers, against formulas and transformers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from seqgen.registry import OPTIMIZERS


def built(name: str, params: list[Parameter], **options: Any) -> Any:
    cfg = OPTIMIZERS.config(name)
    for key, value in options.items():
        assert hasattr(cfg, key)
        setattr(cfg, key, value)
    return OPTIMIZERS.of(cfg).component.build(cfg, [{"params": params}])


def minimize(build: Callable[[list[Parameter]], Any]) -> tuple[Tensor, list[Tensor]]:
    """Take three steps with given gradients and rates; return the start and the parameter after each step."""
    torch.manual_seed(0)
    param = Parameter(torch.randn(3, 4, dtype=torch.float64))
    start, path = param.detach().clone(), []
    optimizer = build([param])
    for step in range(3):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        param.grad = gradient(step)
        optimizer.step()
        path.append(param.detach().clone())
    return start, path


def gradient(step: int) -> Tensor:
    return torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


ADAM = {"adam_betas": [0.8, 0.9], "adam_eps": 1e-3, "weight_decay": 0.2}
DECOUPLED = partial(torch.optim.AdamW, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2)
SGD = {"momentum": 0.5, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("name", "options", "theirs"),
    [("adam", ADAM, DECOUPLED), ("adamw", ADAM, DECOUPLED), ("sgd", SGD, partial(torch.optim.SGD, **SGD))],
)
def test_the_keys_are_those_of_pytorch(name: str, options: dict[str, Any], theirs: Any) -> None:
    torch.testing.assert_close(minimize(partial(built, name, **options)), minimize(theirs))


def test_nag_is_fairseqs() -> None:
    """Fairseq keeps the momentum multiplied by the learning rate and corrects it when that changes."""
    x, path = minimize(lambda params: built("nag", params, momentum=0.9, weight_decay=0.1))
    buffer, last = torch.zeros_like(x), 0.1
    for step, got in enumerate(path):
        lr, g = 0.1 / (step + 1), gradient(step)
        correct = lr / last
        x = x * (1 - lr * 0.1)
        x = x + 0.9 * 0.9 * correct * buffer - (1 + 0.9) * lr * g
        buffer, last = 0.9 * correct * buffer - lr * g, lr
        torch.testing.assert_close(got, x)


@pytest.mark.parametrize(
    "options",
    [
        {"relative_step": True},
        {"relative_step": True, "warmup_init": True},
        {"relative_step": False},
        {"relative_step": False, "scale_parameter": False, "weight_decay": 0.1},
        {"relative_step": True, "beta1": 0.9, "clip_threshold": 0.5},
        {"relative_step": False, "decay_rate": -0.5, "scale_parameter": False},
    ],
    ids=str,
)
def test_adafactor_equals_that_of_transformers(options: dict[str, Any]) -> None:
    """Both ways of T5: with a step of its own, and with a fixed or scheduled one; a matrix, a vector and a scalar."""
    optimization = pytest.importorskip("transformers.optimization")
    torch.manual_seed(0)
    start = [torch.randn(shape, dtype=torch.float64) for shape in ((5, 3), (4,), ())]
    start.append(torch.zeros(2, 3, dtype=torch.float64))  # whose scale is the smallest one
    ours, theirs = ([Parameter(tensor.clone()) for tensor in start] for _ in range(2))
    optimizer = built("adafactor", ours, **options)
    given = {**options, "beta1": options.get("beta1") or None, "lr": None if options["relative_step"] else 0.05}
    oracle = optimization.Adafactor(theirs, **{"scale_parameter": True, **given})
    for _ in range(12):
        optimizer.param_groups[0]["lr"] = 0.05
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        optimizer.step()
        oracle.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
