"""Scaling of gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """Return ``x`` unchanged and multiply its gradient by ``scale`` in the backward pass.

    Args:
        x: a tensor of any shape.
        scale: factor of the gradient.

    Returns:
        The values of ``x``.
    """
    scaled: Tensor = _ScaleGradient.apply(x, scale)  # type: ignore[no-untyped-call]
    return scaled


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.scale, None
