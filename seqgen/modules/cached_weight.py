"""What is computed from a weight, kept for as long as the weight stays what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class CachedWeight(nn.Module):
    """A module that reads its ``weight`` in a form that is costly to make: normalized, say, or laid out anew.

    In training, and wherever gradients are recorded, the form is made at every reading. Otherwise it is made once and
    kept until training resumes or ends, weights are loaded or moved, or a parameter is changed in place or replaced.
    Changes in place behind autograd's back (``parameter.data.add_``) are seen by ``refresh`` alone, with which every
    decoding begins, and only where they change what it samples; call ``model.eval()`` after a change of a few numbers.
    """

    weight: Tensor

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` makes of the weight, made anew only where that may have changed.

        Args:
            name: what it is, beside other things that are made of the same weight.
            make: makes it from the weight of now.
        """
        if self.training or torch.is_grad_enabled():
            self._forget()
            return make()
        parameters = self._parameters_of_weight()
        kept: _Kept = self.__dict__.setdefault("_kept", _Kept())
        entry = kept.get(name)
        if entry is None or not entry[0].holds(parameters):
            entry = kept[name] = (_Stamp(parameters), make())
        made: T = entry[1]
        return made

    def refresh(self) -> None:
        """Forget what was made of a weight that has changed behind autograd's back, by samples of its numbers."""
        kept: dict[str, tuple[_Stamp, Any]] = self.__dict__.get("_kept", {})
        if not all(stamp.looks_alike() for stamp, _ in kept.values()):
            self._forget()

    def current_weight(self) -> Tensor:
        """The weight as computed from the parameters of now."""
        return self.kept("weight", lambda: self.weight) if "parametrizations" in self._modules else self.weight

    def _parameters_of_weight(self) -> list[Tensor]:
        parametrizations = self._modules.get("parametrizations")
        if parametrizations is None:
            return [self.weight]
        owner = parametrizations._modules["weight"]
        assert owner is not None
        return [parameter for parameter in owner._parameters.values() if parameter is not None]

    def _forget(self) -> None:
        self.__dict__.pop("_kept", None)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation, forgetting what was made before."""
        self._forget()
        return super().train(mode)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self._forget()
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return moved

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*args, **kwargs)


class _Stamp:
    """Parameters as they are now: which ones, where their numbers stand, and how often those were changed in place.

    It holds on to the parameters and their memory, so that nothing new can come to stand at the same place.
    """

    def __init__(self, parameters: list[Tensor]):
        self.parameters = parameters
        self.memory = [parameter.detach() for parameter in parameters]
        self.versions = [_version(parameter) for parameter in parameters]
        self.samples = [_sample(parameter).clone() for parameter in parameters]

    def holds(self, parameters: list[Tensor]) -> bool:
        """Whether ``parameters`` are the same still."""
        return len(parameters) == len(self.parameters) and all(
            new is old and new.data_ptr() == memory.data_ptr() and version is not None and _version(new) == version
            for new, old, memory, version in zip(parameters, self.parameters, self.memory, self.versions, strict=True)
        )

    def looks_alike(self) -> bool:
        """Whether a few numbers of the parameters are what they were."""
        return all(
            torch.equal(_sample(parameter), sample)
            for parameter, sample in zip(self.parameters, self.samples, strict=True)
        )


def _sample(parameter: Tensor) -> Tensor:
    """Some sixty numbers from all over a parameter; an odd step, so that they come from all columns of a matrix."""
    return parameter.detach().flatten()[:: parameter.numel() // 61 | 1]


def _version(parameter: Tensor) -> int | None:
    """How often a parameter was changed in place; ``None`` where PyTorch does not count."""
    return None if parameter.is_inference() else parameter._version


class _Kept(dict[str, tuple[_Stamp, Any]]):
    """What a module keeps; a copy of the module keeps nothing yet."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Kept:
        return _Kept()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Kept, ()
