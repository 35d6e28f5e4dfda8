"""The plan of a decoding step: functions that are chosen once for a batch, not at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module

from seqgen.core.contract import Flagged, Flags

T = TypeVar("T")


class StepPlan(dict[Any, Any]):
    """The functions with which modules compute their outputs, and other values that a module uses at several steps.

    While a plan is active, no weight, switch or mode of a module changes, so that a module looks up its function
    instead of checking what the choice of the function depends on.
    """

    _threads = 0

    def kept(self, key: Any, make: Callable[[], T]) -> T:
        """The value of a key; made if there is none."""
        if key not in self:
            self[key] = make()
        value: T = self[key]
        return value

    @contextmanager
    def active(self) -> Iterator[None]:
        """In the ``with`` block, modules use this plan; not if gradients are recorded or autocast changes dtypes."""
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            yield
            return
        if self._threads != (threads := torch.get_num_threads()):  # the fastest kernel depends on it
            self.clear()
            self._threads = threads
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


_ACTIVE: ContextVar[StepPlan | None] = ContextVar("step_plan", default=None)

active_plan: Callable[[], StepPlan | None] = _ACTIVE.get
"""The active plan; ``None`` outside a decoding step."""


class PlannedModule(nn.Module, Flagged):
    """A module of one input whose function is looked up in the active plan, without the search for hooks at each call.

    A subclass that overrides ``forward`` and not ``planned`` is called like any module.
    """

    flags: ClassVar[Flags] = {"planned": ("forward",)}

    def __call__(self, input: Tensor) -> Tensor:
        """Call ``forward``, or in a decoding step the function of ``planned`` if the module has no hooks."""
        plan = active_plan()
        if plan is None:
            output: Tensor = super().__call__(input)
            return output
        key = self, input.numel()
        found = plan.get(key)
        if found is None:
            found = plan[key] = super().__call__ if has_hooks(self) else self.planned(input)
        output = found(input)
        return output

    def planned(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The function that computes what ``forward`` does for inputs such as ``x`` while no weight changes."""
        return super().__call__


def has_hooks(layer: nn.Module) -> bool:
    """True if something is called before or after the ``forward`` of a module."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks)
    return any((*hooks, module._global_forward_hooks, module._global_forward_pre_hooks))
