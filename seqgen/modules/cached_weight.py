"""Weights that are computed from parameters, kept for as long as those stay what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


class CachedWeight(nn.Module):
    """A module whose ``weight`` may be parametrized, for example normalized, and is then costly to read.

    ``current_weight`` reads it anew in training and wherever gradients are recorded. Otherwise it computes it once and
    keeps it until training resumes or ends, weights are loaded or moved, or a parameter is changed in place or
    replaced. The one change that it cannot see is one in place behind autograd's back (``parameter.data.add_``) in the
    middle of an evaluation; call ``model.eval()`` after it.
    """

    weight: Tensor

    def current_weight(self) -> Tensor:
        """The weight as computed from the parameters of now."""
        parametrizations = self._modules.get("parametrizations")
        if parametrizations is None:
            return self.weight
        if self.training or torch.is_grad_enabled():
            self._drop_weight()
            return self.weight
        stamp = _stamp(parametrizations)
        cached: tuple[tuple[Any, ...], Tensor] | None = self.__dict__.get("_cached_weight")
        if cached is None or stamp is None or cached[0] != stamp:
            cached = self.__dict__["_cached_weight"] = (stamp or (), self.weight)
        return cached[1]

    def _drop_weight(self) -> None:
        self.__dict__.pop("_cached_weight", None)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation, forgetting the weight computed before."""
        self._drop_weight()
        return super().train(mode)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self._drop_weight()
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return moved

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._drop_weight()
        super()._load_from_state_dict(*args, **kwargs)


def _stamp(parametrizations: nn.Module) -> tuple[Any, ...] | None:
    """What changes when a parameter is replaced, moved or changed in place; ``None`` where that cannot be told."""
    stamp: list[Any] = []
    for parameter in parametrizations._modules["weight"]._parameters.values():  # type: ignore[union-attr]
        if parameter is None or parameter.is_inference():
            return None
        stamp += (id(parameter), parameter.data_ptr(), parameter._version)
    return tuple(stamp)


class CachedLinear(CachedWeight, nn.Linear):
    """A linear layer whose parametrized weight is computed once per evaluation."""

    def forward(self, input: Tensor) -> Tensor:
        """Map ``(..., in_features)`` to ``(..., out_features)``."""
        return F.linear(input, self.current_weight(), self.bias)


def weight_norm_linear(in_features: int, out_features: int, dropout: float = 0.0) -> CachedLinear:
    """A weight-normalized linear layer, initialized so that it keeps the variance of an input after dropout.

    Args:
        in_features: features of the input.
        out_features: features of the output.
        dropout: probability with which features of the input are dropped.
    """
    linear = CachedLinear(in_features, out_features)
    nn.init.normal_(linear.weight, std=((1 - dropout) / in_features) ** 0.5)
    nn.init.zeros_(linear.bias)
    weight_norm(linear, dim=0)
    return linear
