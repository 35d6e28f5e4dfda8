"""Adafactor: Adam with a factored second moment, which stores one row and one column for each matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter

from seqgen.config import option
from seqgen.errors import ConfigError
from seqgen.registry import register_optimizer


@dataclass
class AdafactorConfig:
    """Options of ``adafactor``."""

    adafactor_eps: list[float] = option(
        [1e-30, 1e-3],
        "two values: constant added to squared gradients, and, for scale_parameter, the minimum root mean square of a "
        "weight matrix",
        minimum=0,
    )
    clip_threshold: float = option(1.0, "clip an update to this root mean square", minimum=0)
    decay_rate: float = option(
        -0.8, "exponent of the second moment's decay, which is 1 - t ** decay_rate at step t", maximum=0
    )
    beta1: float = option(0.0, "decay of the first moment; 0 for none, which saves memory", minimum=0, maximum=1)
    weight_decay: float = option(
        0.0, "decoupled weight decay: every update multiplies weights by 1 - lr * weight_decay", minimum=0
    )
    scale_parameter: bool = option(True, "multiply the learning rate by the root mean square of each weight matrix")
    relative_step: bool = option(False, "use the learning rate min(1e-2, 1 / sqrt(t)) and ignore the schedule")
    warmup_init: bool = option(False, "with relative_step: use min(1e-6 * t, 1 / sqrt(t)) instead")


@register_optimizer("adafactor", config=AdafactorConfig)
class Adafactor(torch.optim.Optimizer):
    """Adafactor (Shazeer & Stern 2018, algorithms 4 and 5).

    Args:
        params: the parameters to train.
        cfg: the options.
    """

    def __init__(self, params: list[Parameter], cfg: AdafactorConfig):
        super().__init__(params, {"lr": 0.0})
        self.cfg = cfg

    @classmethod
    def build(cls, cfg: AdafactorConfig, params: list[Parameter]) -> Self:
        """Build it; see ``build_optimizer``.

        Raises:
            ConfigError: options exclude each other.
        """
        if len(cfg.adafactor_eps) != 2:
            raise ConfigError(f"optimizer.adafactor_eps={cfg.adafactor_eps} must be two numbers")
        if cfg.warmup_init and not cfg.relative_step:
            raise ConfigError("optimizer.warmup_init needs optimizer.relative_step=true")
        return cls(params, cfg)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient; returns the loss of ``closure``, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group["lr"])
        return loss

    def _update(self, param: Tensor, grad: Tensor, lr: float) -> None:
        cfg, state = self.cfg, self.state[param]
        grad = grad.float() if grad.dtype in (torch.float16, torch.bfloat16) else grad
        step = state.get("step", 0) + 1
        state["step"] = step
        beta2 = 1.0 - step**cfg.decay_rate
        update = self._precondition(grad, state, beta2)
        update.div_((_rms(update) / cfg.clip_threshold).clamp_(min=1.0))
        if cfg.relative_step:
            lr = min(1e-6 * step if cfg.warmup_init else 1e-2, 1.0 / math.sqrt(step))
        scale = _rms(param).clamp_(min=cfg.adafactor_eps[1]) * lr if cfg.scale_parameter else lr
        update.mul_(scale)
        if cfg.beta1:
            mean = state.setdefault("exp_avg", torch.zeros_like(grad))
            update = mean.mul_(cfg.beta1).add_(update, alpha=1 - cfg.beta1)
        if cfg.weight_decay:
            param.mul_(1 - lr * cfg.weight_decay)
        param.sub_(update)

    def _precondition(self, grad: Tensor, state: dict[str, Any], beta2: float) -> Tensor:
        """Divide a gradient by the root of its second moment, which is stored factored for matrices.

        For a matrix the second moment is estimated from the means of its rows ``R`` and columns ``C`` as
        ``R C^T / mean(R)``, whose inverse root is again an outer product.
        """
        squared = grad.square().add_(self.cfg.adafactor_eps[0])
        if grad.dim() < 2:
            second: Tensor = state.setdefault("exp_avg_sq", torch.zeros_like(grad))
            second.lerp_(squared, 1.0 - beta2)
            return grad * second.rsqrt()
        row: Tensor = state.setdefault("exp_avg_sq_row", grad.new_zeros(grad.shape[:-1]))
        col: Tensor = state.setdefault("exp_avg_sq_col", grad.new_zeros(grad.shape[:-2] + grad.shape[-1:]))
        row.lerp_(squared.mean(-1), 1.0 - beta2)
        col.lerp_(squared.mean(-2), 1.0 - beta2)
        row_factor = (row / row.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1)
        return row_factor * col.rsqrt().unsqueeze(-2) * grad


def _rms(values: Tensor) -> Tensor:
    return values.square().mean().sqrt()
