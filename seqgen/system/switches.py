"""Switches that turn off optimizations in code that has no argument for it.

A switch has one value for each thread and context, so that two simultaneous decodes can have different values::

    with PREPACKED_WEIGHTS.off():
        generator.generate(batch)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar


class Switch:
    """The switch of an optimization, which is on by default.

    Args:
        name: name of the switch.
    """

    def __init__(self, name: str):
        self._value: ContextVar[bool] = ContextVar(name, default=True)
        self.is_on: Callable[[], bool] = self._value.get
        """True if the optimization is on: the method of the context variable, since every linear layer calls it."""

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switch the optimization off in the ``with`` block."""
        token = self._value.set(False)
        try:
            yield
        finally:
            self._value.reset(token)


PREPACKED_WEIGHTS = Switch("prepacked_weights")
KERNEL_CHOICE = Switch("kernel_choice")
"""Choosing the kernels of products by measurement; see ``seqgen.modules.kernel_choice``."""
MAPPED_WEIGHTS = Switch("mapped_weights")
"""Using weights from their mapped file when a model is loaded; see ``seqgen.system.mapped_weights``."""
INPUT_CHOICES = Switch("input_choices")
"""Choosing the computation by the size or the values of the input, for example no mask for a batch without padding. It
is off while a model is exported, since the exported computation must be right for all inputs."""


@contextmanager
def apply_switches(states: dict[Switch, bool]) -> Iterator[None]:
    """Switch off the optimizations whose value is false, in the ``with`` block.

    Args:
        states: the value of each switch.
    """
    with ExitStack() as stack:
        for switch, on in states.items():
            if not on:
                stack.enter_context(switch.off())
        yield
