"""Optimizers.

A registered class is a ``torch.optim.Optimizer`` with a classmethod ``build(cfg, params)``. Before every step, the
trainer sets the learning rate of its ``param_groups``. Keys have fairseq's names and meanings: the ``weight_decay`` of
Adam and NAG is decoupled from the gradient (Loshchilov & Hutter 2019).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter

from seqgen.config import option
from seqgen.errors import ConfigError
from seqgen.registry import OPTIMIZERS, register_optimizer
from seqgen.training import adafactor as adafactor  # registers itself


def build_optimizer(cfg: Any, params: Iterable[Parameter]) -> torch.optim.Optimizer:
    """Build the optimizer whose configuration class this is.

    Args:
        cfg: an instance of a registered configuration class.
        params: the parameters to train.

    Raises:
        ConfigError: options exclude each other or have wrong values.
    """
    optimizer: torch.optim.Optimizer = OPTIMIZERS.of(cfg).component.build(cfg, list(params))  # type: ignore[attr-defined]
    return optimizer


@dataclass
class AdamConfig:
    """Options of ``adam``."""

    adam_betas: list[float] = option(
        [0.9, 0.98], "decay rates of the first and the second moment", minimum=0, maximum=1
    )
    adam_eps: float = option(1e-8, "constant added to the denominator", minimum=0)
    weight_decay: float = option(
        0.0, "decoupled weight decay: every update multiplies weights by 1 - lr * weight_decay", minimum=0
    )


@dataclass
class AdamWConfig:
    """Options of ``adamw``: the same as ``adam`` with PyTorch's defaults."""

    adam_betas: list[float] = option(
        [0.9, 0.999], "decay rates of the first and the second moment", minimum=0, maximum=1
    )
    adam_eps: float = option(1e-8, "constant added to the denominator", minimum=0)
    weight_decay: float = option(
        0.01, "decoupled weight decay: every update multiplies weights by 1 - lr * weight_decay", minimum=0
    )


@dataclass
class SGDConfig:
    """Options of ``sgd``."""

    momentum: float = option(0.0, "momentum factor", minimum=0, maximum=1)
    weight_decay: float = option(0.0, "weight of the L2 penalty, whose gradient is added", minimum=0)


@dataclass
class NAGConfig:
    """Options of ``nag``."""

    momentum: float = option(0.99, "momentum factor", minimum=0, maximum=1)
    weight_decay: float = option(
        0.0, "decoupled weight decay: every update multiplies weights by 1 - lr * weight_decay", minimum=0
    )


@register_optimizer("adam", config=AdamConfig)
class Adam(torch.optim.AdamW):
    """Adam (Kingma & Ba 2015) with decoupled weight decay; fused if the device supports it."""

    @classmethod
    def build(cls, cfg: AdamConfig | AdamWConfig, params: list[Parameter]) -> Self:
        """Build it; see ``build_optimizer``."""
        if len(cfg.adam_betas) != 2 or not all(0 <= beta < 1 for beta in cfg.adam_betas):
            raise ConfigError(f"optimizer.adam_betas={cfg.adam_betas} must be two numbers, >= 0 and < 1")
        betas = (cfg.adam_betas[0], cfg.adam_betas[1])
        return cls(params, betas=betas, eps=cfg.adam_eps, weight_decay=cfg.weight_decay, fused=_can_fuse(params))


@register_optimizer("adamw", config=AdamWConfig)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); ``adam`` with PyTorch's defaults."""


@register_optimizer("sgd", config=SGDConfig)
class SGD(torch.optim.SGD):
    """Stochastic gradient descent with momentum."""

    @classmethod
    def build(cls, cfg: SGDConfig, params: list[Parameter]) -> Self:
        """Build it; see ``build_optimizer``."""
        return cls(params, momentum=cfg.momentum, weight_decay=cfg.weight_decay, fused=_can_fuse(params))


@register_optimizer("nag", config=NAGConfig)
class NAG(torch.optim.SGD):
    """Nesterov's accelerated gradient (Sutskever et al. 2013), the optimizer of the convolutional models' paper."""

    def __init__(self, params: Any, momentum: float, weight_decay: float, fused: bool):
        super().__init__(params, momentum=momentum, nesterov=momentum > 0, fused=fused)
        self.decay = weight_decay

    @classmethod
    def build(cls, cfg: NAGConfig, params: list[Parameter]) -> Self:
        """Build it; see ``build_optimizer``."""
        return cls(params, cfg.momentum, cfg.weight_decay, _can_fuse(params))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Apply the weight decay, then the step of ``torch.optim.SGD``."""
        if self.decay:
            for group in self.param_groups:
                trained = [param for param in group["params"] if param.grad is not None]
                torch._foreach_mul_(trained, 1 - group["lr"] * self.decay)
        return super().step(closure)


def _can_fuse(params: Iterable[Tensor]) -> bool:
    from torch.distributed.tensor import DTensor  # takes half a second, and decoding imports this file, too

    return all(
        param.device.type in ("cpu", "cuda", "mps") and param.is_floating_point() and not isinstance(param, DTensor)
        for param in params
    )
