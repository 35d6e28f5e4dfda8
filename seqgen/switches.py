"""Switches of optimizations that are not arguments of the code that they concern.

A switch has a value for the current thread and context, so that two decodes that run side by side may differ::

    with PREPACKED_WEIGHTS.off():
        generator.generate(batch)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar


class Switch:
    """An optimization that is on unless it is switched off.

    Args:
        name: of the switch.
    """

    def __init__(self, name: str):
        self._value: ContextVar[bool] = ContextVar(name, default=True)

    def __bool__(self) -> bool:
        return self._value.get()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switch the optimization off inside the ``with`` block."""
        token = self._value.set(False)
        try:
            yield
        finally:
            self._value.reset(token)


PREPACKED_WEIGHTS = Switch("prepacked_weights")
TWO_STAGE_CANDIDATES = Switch("two_stage_candidates")


@contextmanager
def switched(states: dict[Switch, bool]) -> Iterator[None]:
    """Switch off those optimizations whose value is false."""
    with ExitStack() as stack:
        for switch, on in states.items():
            if not on:
                stack.enter_context(switch.off())
        yield
