"""Sharpness-aware minimization (Foret et al. 2021): each update uses the gradient of the worst weights nearby.

    seqgen-train common.user_dir=examples/papers/sharpness_aware.py optimizer=sam optimizer.rho=0.05 ...

The trainer computes the gradient of an update and calls ``step(closure)``; ``closure()`` computes it again, over all
batches of the update, with the weights as they are then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch

from seqgen.config import option
from seqgen.extend import register_optimizer


@dataclass
class SAMConfig:
    """Options of ``sam``."""

    rho: float = option(0.05, "distance of the worst weights, as the L2 norm of the difference", minimum=0)
    weight_decay: float = option(0.0, "decoupled weight decay", minimum=0)


@register_optimizer("sam", config=SAMConfig)
class SAM(torch.optim.AdamW):
    """Adam with the gradient at ``w + rho * g / |g|``, where ``g`` is the gradient at the weights ``w``."""

    needs_closure = True
    rho: float

    @classmethod
    def build(cls, cfg: SAMConfig, groups: list[dict[str, Any]]) -> Self:
        """Build it from its options and the groups of parameters."""
        made = cls(groups, weight_decay=cfg.weight_decay)
        made.rho = cfg.rho
        return made

    @torch.no_grad()
    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        """Make the update; ``closure`` computes the gradient with the present weights and returns the loss."""
        params = [param for group in self.param_groups for param in group["params"] if param.grad is not None]
        grads, weights = [param.grad for param in params], [param.clone() for param in params]
        torch._foreach_add_(params, grads, alpha=self.rho / (float(torch.nn.utils.get_total_norm(grads)) + 1e-12))
        with torch.enable_grad():
            loss = closure()
        torch._foreach_copy_(params, weights)
        super().step()
        return loss
