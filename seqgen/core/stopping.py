"""The base class of stopping rules: what ends an output besides end-of-sentence and the maximum length."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from seqgen.core.component import Component
from seqgen.core.context import StepContext
from seqgen.core.contract import Flags


class StoppingRule(Component):
    """Decides which outputs are complete; a subclass implements ``__call__``.

    A rule registered with ``@register_stopping_rule`` is selected by its name (``generation.stopping_rules``).
    """

    setting = "stopping_rules"

    flags: ClassVar[Flags] = {"can_merge": ("__call__",)}

    can_merge: bool = False
    """True if sentences may join a running batch: of ``tokens``, the rule then reads only the last
    ``context.steps + 1`` of each row, and uses ``context.steps`` instead of ``context.step``."""

    expired: bool = False
    """True if the newest call ended all outputs because a time limit is exceeded; hypotheses are then ``timed_out``."""

    def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
        """Decide which outputs end with their newest token.

        Args:
            tokens: ``(rows, step + 1)`` int64, without a start token, the newest token last.
            context: the step context; its rows are candidates, and its tokens do not include the newest one.

        Returns:
            ``(rows,)`` bool.
        """
        raise NotImplementedError
