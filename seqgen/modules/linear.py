"""Linear layers that are also fast for few input rows, as in decoding, and matrix products for training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.parametrizations import weight_norm

from seqgen.modules.cached_weight import CachedWeight
from seqgen.modules.kernel_choice import ALIKE, MatrixProduct, time_calls
from seqgen.modules.kernels import PLAIN, Kernel, has_onednn, kernels_for, onednn_product
from seqgen.modules.step_plan import PlannedModule, active_plan
from seqgen.system.switches import PREPACKED_WEIGHTS

_LARGE_PRODUCT = 10_000_000
"""Products with fewer multiplications take so little time that the kernel does not matter."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.T + bias`` with gradients, in training by the kernel that ``TRAINING`` chose.

    Args:
        x: ``(..., in_features)``.
        weight: ``(out_features, in_features)``.
        bias: ``(out_features,)`` or ``None``.

    Returns:
        ``(..., out_features)``.
    """
    by_onednn = (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and torch.is_grad_enabled()
        and x.numel() * weight.size(0) >= _LARGE_PRODUCT
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and TRAINING.uses_onednn()
    )
    if not by_onednn:
        return F.linear(x, weight, bias)
    out: Tensor = _OneDNNLinear.apply(x.reshape(-1, x.size(-1)), weight, bias)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``a @ b.T + bias`` without gradients; both matrices may have any strides."""
    if a.dtype == torch.float32 and a.device.type == "cpu" and TRAINING.uses_onednn():
        return onednn_product(a, b, bias)
    return F.linear(a, b, bias)


class TrainingKernel:
    """The choice of training between oneDNN and PyTorch's function for products, which is slow on some processors.

    Attributes:
        onednn: the choice; ``None`` for oneDNN without a choice.
    """

    def __init__(self) -> None:
        self.onednn: bool | None = None

    def choose(self) -> None:
        """Measure, unless there is a choice: a resumed run keeps its choice, so that it computes the same bits.

        Several processes use oneDNN without measurement, so that all of them compute alike.
        """
        if self.onednn is None and not dist.is_initialized():
            self.onednn = _onednn_is_fast()

    def uses_onednn(self) -> bool:
        """True if products are computed by oneDNN."""
        return self.onednn is not False and has_onednn()


TRAINING = TrainingKernel()


@torch.enable_grad()
def _onednn_is_fast() -> bool:
    """True if oneDNN computes a product and its gradients in about the time of PyTorch's function, or less."""
    if not has_onednn():
        return False
    x, weight = (torch.ones(1024, 512, requires_grad=True) for _ in range(2))

    def by(kernel: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> None:
        torch.autograd.grad(kernel(x, weight, None).sum(), [x, weight])

    onednn, plain = time_calls({"oneDNN": partial(by, _OneDNNLinear.apply), "plain": partial(by, F.linear)}).values()
    return onednn <= ALIKE * plain


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return onednn_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wants = ctx.needs_input_grad
        grad = grad.contiguous()  # with an expanded tensor, such as the gradient of a sum, oneDNN takes half a minute
        return (
            onednn_product(grad, weight.t()) if wants[0] else None,
            _gradient_of_weight(grad, x) if wants[1] else None,
            grad.sum(0) if ctx.has_bias and wants[2] else None,
        )


def _gradient_of_weight(grad: Tensor, x: Tensor) -> Tensor:
    """Compute ``grad.T @ x``. oneDNN copies its first argument to transpose it, which is therefore the smaller one."""
    if grad.size(1) <= x.size(1):
        return onednn_product(grad.t(), x.t())
    return onednn_product(x.t(), grad.t()).t()


_LARGE_MATRIX = 2**17
"""Number of weights from which kernels are chosen. A call of oneDNN or of an int8 kernel costs 20 microseconds on a
Xeon, and PyTorch's function multiplies one row by a smaller matrix in 5 to 15.
"""


class Projection(CachedWeight):
    """A module that multiplies by its weight, and keeps the weight prepacked during evaluation.

    On a CPU, the weight is arranged for the kernel that is fastest for the number of rows (``MatrixProduct``). The
    memory of a weight that is mapped from its file is then given back (``seqgen.system.mapped_weights``); any other
    weight needs its memory once more for each layout.
    """

    packs = True
    """True to prepack; set it to false on ``Projection``, on a subclass or on one module to switch it off there."""

    int8 = False
    """True to multiply in 8-bit integers."""

    bias: nn.Parameter

    def current_weight(self) -> Tensor:
        """The weight in the dtype of the bias; the parameters from which it is computed may be float32."""
        weight = super().current_weight()
        return weight if self.bias is None else weight.to(self.bias.dtype)

    def matrix(self) -> Tensor:
        """The weight as a matrix ``(out_features, in_features)``."""
        return self.current_weight()

    def project(self, x: Tensor) -> Tensor:
        """Multiply by the weight and add the bias.

        Args:
            x: ``(..., in_features)``.

        Returns:
            ``(..., out_features)``.
        """
        plan = active_plan()
        if plan is not None:
            return plan.kept(("project", self, x.numel()), lambda: self.projection(x))(x)
        if torch.is_grad_enabled():
            return linear(x, self.matrix(), self.bias)
        return self.projection(x)(x)

    def projection(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The function that projects inputs of the size of ``x`` while the weight does not change."""
        if not self._prepacks(x.device):
            return partial(F.linear, weight=self.matrix(), bias=self.bias)
        product: MatrixProduct = self.kept("product", self.product)
        return product.bound(x, self.bias)

    def columns(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Prepare the computation of some outputs only, with the current weight.

        Args:
            ids: ``(U,)`` int64, numbers of the outputs.

        Returns:
            Maps ``(..., in_features)`` to ``(..., U)``, the columns ``ids`` of what ``project`` returns.
        """
        whole = self.matrix().detach()
        matrix = whole.index_select(0, ids)
        bias = None if self.bias is None else self.bias.detach().index_select(0, ids)
        kernels = self._kernels(whole) if self._prepacks(matrix.device) else (PLAIN,)
        product = MatrixProduct(matrix, kernels)
        return lambda x: product.bound(x, bias)(x)

    def _prepacks(self, device: torch.device) -> bool:
        """True if kernels of ``kernels`` are used: not if autocast changes dtypes or a compiler traces."""
        return (
            not self.training
            and device.type == "cpu"
            and PREPACKED_WEIGHTS.is_on()
            and (self.packs or self.int8)
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )

    def product(self) -> MatrixProduct:
        """The product with the current weight."""
        matrix = self.matrix().detach()
        return MatrixProduct(matrix, self._kernels(matrix), self._parameters_of_weight())

    def _kernels(self, matrix: Tensor) -> Sequence[Kernel]:
        """The kernels to choose from."""
        return kernels_for(matrix.dtype, self.int8) if matrix.numel() >= _LARGE_MATRIX else (PLAIN,)


class Linear(PlannedModule, Projection, nn.Linear):
    """A faster ``nn.Linear`` with the same parameters; results differ only by the order of summation.

    A parametrized weight, for example a weight-normalized one, is computed once per evaluation.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map ``(..., in_features)`` to ``(..., out_features)``."""
        return self.project(input)

    def planned(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """See ``PlannedModule.planned``."""
        return self.projection(x)


def weight_norm_linear(in_features: int, out_features: int, dropout: float = 0.0) -> Linear:
    """A weight-normalized linear layer (Salimans and Kingma 2016).

    It is initialized so that the output has the same variance as the input had before dropout (Gehring et al. 2017).

    Args:
        in_features: features of the input.
        out_features: features of the output.
        dropout: probability with which features of the input are dropped.
    """
    linear = Linear(in_features, out_features)
    nn.init.normal_(linear.weight, std=((1 - dropout) / in_features) ** 0.5)
    nn.init.zeros_(linear.bias)
    weight_norm(linear, dim=0)
    return linear
