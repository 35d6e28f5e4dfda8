"""Tensors computed from a weight, cached until the weight changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

T = TypeVar("T")


class CachedWeight(nn.Module):
    """A module that computes something from its ``weight``, such as a normalized or prepacked weight.

    In training, and whenever gradients are recorded, it is computed at every use. Otherwise it is computed once and
    cached until ``train`` or ``eval`` is called, weights are loaded or moved, or a parameter is changed in place or
    replaced. Changes in place that autograd does not count (``parameter.data.add_``) are not found: call
    ``model.eval()`` after them.
    """

    weight: Tensor

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """The cached result of ``make``, computed again if the weight may have changed.

        Args:
            name: the name of the result in the cache.
            make: computes the result from the current weight.

        Returns:
            The result of ``make``.
        """
        if self.training or torch.is_grad_enabled():
            self._forget()
            return make()
        parameters = self._parameters_of_weight()
        kept: _Kept = self.__dict__.setdefault("_kept", _Kept())
        entry = kept.get(name)
        if entry is None or not entry[0].holds(parameters):
            entry = kept[name] = (Stamp(parameters), make())
        made: T = entry[1]
        return made

    def current_weight(self) -> Tensor:
        """The weight, computed from the current parameters if it is parametrized."""
        return self.kept("weight", self._computed_weight) if "parametrizations" in self._modules else self.weight

    def _computed_weight(self) -> Tensor:
        if self.training or torch.is_grad_enabled():
            return self.weight
        with _FixedNorms():
            return self.weight

    def _parameters_of_weight(self) -> list[Tensor]:
        parametrizations = self._modules.get("parametrizations")
        return [self.weight] if parametrizations is None else list(parametrizations.parameters())

    def _forget(self) -> None:
        self.__dict__.pop("_kept", None)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation, and clear the cache."""
        self._forget()
        return super().train(mode)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self._forget()
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return moved

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle parametrized modules too; PyTorch refuses, because it makes a class for each of them.

        Hooks are left out: PyTorch's weight norm has one that cannot be pickled, for state dicts of its old version.
        """
        if "parametrizations" not in self._modules:
            return super().__reduce_ex__(protocol)
        attributes = {**self.__dict__, "_load_state_dict_pre_hooks": OrderedDict()}
        return _parametrized, (parametrize.type_before_parametrizations(self), attributes)


def _parametrized(kind: type[CachedWeight], attributes: dict[str, Any]) -> CachedWeight:
    """A module of a class, with a parametrized weight and these attributes."""
    module = kind.__new__(kind)
    module.__dict__.update(attributes)
    change_class(module, kind)
    return module


class _FixedNorms(TorchFunctionMode):
    """Computes weight-normalized weights (Salimans and Kingma 2016) with the same bits for any number of threads."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_weight_norm if func is torch._weight_norm else func)(*args, **(kwargs or {}))


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    others = [other for other in range(v.dim()) if other != dim]
    return v * (g / (v * v).sum(others, keepdim=True).sqrt())


def change_class(module: CachedWeight, kind: type[CachedWeight]) -> None:
    """Make a module an instance of another class, for example of a subclass; a parametrized weight stays so.

    Args:
        module: the module, which keeps its attributes.
        kind: the class.
    """
    module.__class__ = kind
    if "parametrizations" in module._modules:
        parametrize._inject_new_class(module)
        parametrize._inject_property(module, "weight")


class Stamp:
    """The state of parameters at one time: their identity, memory and version counters.

    It keeps the parameters and their memory alive, so that no new tensor can have the same identity or address. PyTorch
    does not count the changes of inference tensors, for which it never holds.
    """

    def __init__(self, parameters: list[Tensor]):
        self.parameters = [(one, one.detach(), None if one.is_inference() else one._version) for one in parameters]

    def holds(self, parameters: list[Tensor]) -> bool:
        """True if ``parameters`` are the same tensors, in the same memory and version."""
        return len(parameters) == len(self.parameters) and all(
            new is old and new.data_ptr() == memory.data_ptr() and version is not None and new._version == version
            for new, (old, memory, version) in zip(parameters, self.parameters, strict=True)
        )


class _Kept(dict[str, tuple[Stamp, Any]]):
    """The cache of a module; a copied or pickled module has an empty one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Kept:
        return _Kept()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Kept, ()
