"""Optimizers.

A registered class is a ``torch.optim.Optimizer`` with a classmethod ``build(cfg, groups)``, where ``groups`` is what
PyTorch's optimizers take: each group has ``params``, their ``names``, and the values of ``optimization.groups``. Before
every step, the trainer sets the learning rate ``lr`` of each of its ``param_groups``, times ``lr_scale``.

An optimizer with ``needs_closure = True`` computes several gradients in an update: its ``step(closure)`` is called when
the gradient is there, and ``closure()`` computes that of the present weights, over all batches of the update, and
returns the mean loss. Keys have fairseq's names and meanings: the ``weight_decay`` of
Adam and NAG is decoupled from the gradient (Loshchilov & Hutter 2019).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.config import TrainConfig, like, option
from seqgen.core.contract import check_returned
from seqgen.core.errors import ConfigError
from seqgen.registry import OPTIMIZERS, register_optimizer
from seqgen.training.distributed import is_part
from seqgen.training.parameters import Groups


def build_optimizer(cfg: TrainConfig, groups: Groups) -> torch.optim.Optimizer:
    """Build the optimizer of a configuration.

    Args:
        cfg: the whole configuration.
        groups: the groups of parameters.

    Raises:
        UserError: its class does not do what this module says.
    """
    component: Any = (entry := OPTIMIZERS.of(cfg.optimizer)).component
    where = f"optimizer={entry.name} ({component.__name__}, {entry.defined_in})"
    try:
        built = component.build(cfg.optimizer, groups)
    except (AttributeError, TypeError, ValueError) as error:  # such as that of torch's LBFGS, which has no groups
        raise ConfigError(f"{where}: build(cfg, groups) fails: {error}") from error
    made = check_returned(component, "build", built, torch.optim.Optimizer)
    kept = [(*map(id, group["params"]), group.get("lr_scale")) for group in made.param_groups]
    if kept != [(*map(id, group["params"]), group.get("lr_scale")) for group in groups]:
        raise ConfigError(f"{where} must keep the groups that its method build receives; pass them on")
    needs_closure = bool(getattr(made, "needs_closure", False))
    if needs_closure and cfg.common.fp16:
        raise ConfigError(f"{where} needs several gradients, so common.fp16 must be false; use common.bf16")
    try:
        inspect.signature(made.step).bind(*[None] * needs_closure)
    except TypeError as error:
        how = f"with{'' if needs_closure else 'out'} a closure"
        raise ConfigError(f"{where}: step {how}: {error}; set needs_closure = {not needs_closure} in it") from None
    return made


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
class AdamWConfig(AdamConfig):
    """Options of ``adamw``: the same as ``adam`` with PyTorch's defaults."""

    adam_betas: list[float] = like(AdamConfig, "adam_betas", [0.9, 0.999])
    weight_decay: float = like(AdamConfig, "weight_decay", 0.01)


@dataclass
class SGDConfig:
    """Options of ``sgd``."""

    momentum: float = option(0.0, "momentum factor", minimum=0, maximum=1)
    weight_decay: float = option(0.0, "weight of the L2 penalty, whose gradient is added", minimum=0)


@dataclass
class NAGConfig:
    """Options of ``nag``."""

    momentum: float = option(0.99, "momentum factor", minimum=0, maximum=1)
    weight_decay: float = like(AdamConfig, "weight_decay")


@register_optimizer("adam", config=AdamConfig)
class Adam(torch.optim.AdamW):
    """Adam (Kingma & Ba 2015) with decoupled weight decay; fused if the device supports it."""

    @classmethod
    def build(cls, cfg: AdamConfig, groups: Groups) -> Self:
        """Build it from the configuration that the class is registered with, and the groups of parameters."""
        if len(cfg.adam_betas) != 2 or not all(0 <= beta < 1 for beta in cfg.adam_betas):
            raise ConfigError(f"optimizer.adam_betas={cfg.adam_betas} must be two numbers, >= 0 and < 1")
        betas = (cfg.adam_betas[0], cfg.adam_betas[1])
        return cls(groups, betas=betas, eps=cfg.adam_eps, weight_decay=cfg.weight_decay, fused=_can_fuse(groups))


@register_optimizer("adamw", config=AdamWConfig)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); ``adam`` with PyTorch's defaults."""


@register_optimizer("sgd", config=SGDConfig)
class SGD(torch.optim.SGD):
    """Stochastic gradient descent with momentum."""

    @classmethod
    def build(cls, cfg: SGDConfig, groups: Groups) -> Self:
        """Build it from the configuration that the class is registered with, and the groups of parameters."""
        return cls(groups, momentum=cfg.momentum, weight_decay=cfg.weight_decay, fused=_can_fuse(groups))


@register_optimizer("nag", config=NAGConfig)
class NAG(torch.optim.SGD):
    """Nesterov's accelerated gradient (Sutskever et al. 2013), the optimizer of the convolutional models' paper."""

    @classmethod
    def build(cls, cfg: NAGConfig, groups: Groups) -> Self:
        """Build it from the configuration that the class is registered with, and the groups of parameters."""
        own = [{"decay": group.get("weight_decay", cfg.weight_decay), **group, "weight_decay": 0.0} for group in groups]
        return cls(own, momentum=cfg.momentum, nesterov=cfg.momentum > 0, fused=_can_fuse(groups))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Apply the weight decay, then the step of ``torch.optim.SGD``."""
        for group in self.param_groups:
            if group["decay"]:
                trained = [param for param in group["params"] if param.grad is not None]
                torch._foreach_mul_(trained, 1 - group["lr"] * group["decay"])
        return super().step(closure)


def _can_fuse(groups: Groups) -> bool:
    params = (param for group in groups for param in group["params"])
    return all(p.device.type in ("cpu", "cuda", "mps") and p.is_floating_point() and not is_part(p) for p in params)


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
    weight_decay: float = like(AdamConfig, "weight_decay")
    scale_parameter: bool = option(True, "multiply the learning rate by the root mean square of each weight matrix")
    relative_step: bool = option(False, "use the learning rate min(1e-2, 1 / sqrt(t)) and ignore the schedule")
    warmup_init: bool = option(False, "with relative_step: use min(1e-6 * t, 1 / sqrt(t)) instead")


@register_optimizer("adafactor", config=AdafactorConfig)
class Adafactor(torch.optim.Optimizer):
    """Adafactor (Shazeer & Stern 2018, algorithms 4 and 5).

    Args:
        groups: the groups of parameters.
        cfg: the options.
    """

    def __init__(self, groups: Groups, cfg: AdafactorConfig):
        super().__init__(groups, {"lr": 0.0, "weight_decay": cfg.weight_decay})
        self.cfg = cfg

    @classmethod
    def build(cls, cfg: AdafactorConfig, groups: Groups) -> Self:
        """Build it; see ``Adam.build``.

        Raises:
            ConfigError: options exclude each other.
        """
        if len(cfg.adafactor_eps) != 2:
            raise ConfigError(f"optimizer.adafactor_eps={cfg.adafactor_eps} must be two numbers")
        if cfg.warmup_init and not cfg.relative_step:
            raise ConfigError("optimizer.warmup_init needs optimizer.relative_step=true")
        return cls(groups, cfg)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group)

    def _update(self, param: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
        cfg, state, lr, weight_decay = self.cfg, self.state[param], group["lr"], group["weight_decay"]
        grad = grad.float() if grad.dtype in (torch.float16, torch.bfloat16) else grad
        step = state["step"] = state.get("step", 0) + 1
        update = self._precondition(grad, state, beta2=1.0 - step**cfg.decay_rate)
        update.div_((_rms(update) / cfg.clip_threshold).clamp_(min=1.0))
        if cfg.relative_step:
            lr = min(1e-6 * step if cfg.warmup_init else 1e-2, 1.0 / math.sqrt(step)) * group.get("lr_scale", 1.0)
        scale = _rms(param).clamp_(min=cfg.adafactor_eps[1]) * lr if cfg.scale_parameter else lr
        update.mul_(scale)
        if cfg.beta1:
            mean = state.setdefault("exp_avg", torch.zeros_like(grad))
            update = mean.mul_(cfg.beta1).add_(update, alpha=1 - cfg.beta1)
        if weight_decay:
            param.mul_(1 - lr * weight_decay)
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
