"""The plan of a decoding step: functions that are chosen once for a batch, not at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules import module

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


def has_hooks(layer: nn.Module) -> bool:
    """True if something is called before or after the ``forward`` of a module."""
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or module._global_forward_hooks
        or module._global_forward_pre_hooks
    )
