"""Root mean square layer normalization."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seqgen.modules.step_plan import PlannedModule
from seqgen.system.switches import INPUT_CHOICES


class RMSNorm(PlannedModule):
    """Root mean square layer normalization (Zhang and Sennrich 2019, equation 4).

    Without mean subtraction and bias: ``y = weight * x / sqrt(mean(x ** 2) + eps)``. The mean is computed in float32 or
    wider. The output has the dtype of the weight.

    Args:
        dim: dimension of the features.
        eps: added to the mean square.
        zero_centered: whether the factor is ``1 + weight`` and the weight begins as zeros, as in Gemma. In float16 and
            bfloat16, the factor is then applied in float32.
    """

    def __init__(self, dim: int, eps: float = 1e-6, zero_centered: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim) if zero_centered else torch.ones(dim))
        self.eps = eps
        self.zero_centered = zero_centered

    def planned(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """See ``PlannedModule.planned``; on a CPU with fewer kernels.

        With ``n`` the norm of ``x``, ``sqrt(mean(x ** 2) + eps) = sqrt(n ** 2 + C * eps) / sqrt(C)``. A norm may have
        other bits for other numbers of rows.
        """
        dim, dtype = x.size(-1), x.dtype
        if x.device.type != "cpu" or not INPUT_CHOICES.is_on() or {dtype, self.weight.dtype} - {torch.float32}:
            return self.forward
        factor = (1 + self.weight if self.zero_centered else self.weight) * math.sqrt(dim)
        smallest, norm = torch.tensor(math.sqrt(dim * self.eps)), torch.linalg.vector_norm
        return lambda x: x.div(torch.hypot(norm(x, dim=-1, keepdim=True), smallest)).mul_(factor)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``(..., C)`` over its last dimension."""
        if x.dtype != self.weight.dtype or x.dtype in (torch.float16, torch.bfloat16):
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            if self.zero_centered:
                factor = 1 + self.weight.to(wide.dtype)
                return (F.rms_norm(wide, self.weight.shape, eps=self.eps) * factor).to(self.weight.dtype)
            return F.rms_norm(wide, self.weight.shape, eps=self.eps).to(self.weight.dtype) * self.weight
        factor = 1 + self.weight if self.zero_centered else self.weight
        if x.device.type == "cpu" and torch.is_grad_enabled():
            normalized: Tensor = _RMSNorm.apply(x, factor, self.eps)  # type: ignore[no-untyped-call]
            return normalized
        return F.rms_norm(x, self.weight.shape, factor, self.eps)


class _RMSNorm(torch.autograd.Function):
    """RMSNorm with a backward pass that takes half the time of PyTorch's on a CPU.

    With ``r = 1 / sqrt(mean(x ** 2) + eps)`` and ``h = r * x``, the gradient of ``x`` is
    ``r * (g * w - h * mean(g * w * h))`` and that of ``w`` the sum of ``g * h`` over positions.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.size(-1)).add_(eps).rsqrt_()
        normalized = x * scale
        ctx.save_for_backward(normalized, scale, weight)
        scaled: Tensor = normalized * weight
        return scaled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        normalized, scale, weight = ctx.saved_tensors
        product = grads[0] * normalized
        with torch.autocast("cpu", enabled=False):  # autocast would compute this matrix product in bfloat16
            mean = torch.matmul(product, weight.unsqueeze(-1)).div_(weight.numel())
        grad = torch.addcmul(grads[0] * weight, normalized, mean, value=-1).mul_(scale)
        return grad, product.reshape(-1, weight.numel()).sum(0), None
