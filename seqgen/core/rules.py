"""Rules: how the search ends, and stopping rules, which end an output besides end-of-sentence and its length."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from seqgen.core.component import BatchInfo, Component
from seqgen.core.context import StepContext
from seqgen.core.contract import Flags
from seqgen.core.finished import FinishedHypotheses, FirstFinished, Ranking
from seqgen.core.search import Search


class Rules:
    """Plain rules: the first ``beam`` finished hypotheses are kept, and an output is cut at its maximum length.

    The rules of a toolkit are a subclass.
    """

    name: str = ""
    """The value of a key that selects them; empty for plain rules."""

    forces_end: bool = False
    """True if end-of-sentence is forced at the maximum length; if not, an output is cut there."""

    counts_start: bool = False
    """True if processors see the start token as a generated token."""

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """Make the finished hypotheses of a beam search."""
        return FirstFinished(batch, ranking)

    def renormalizes(self, search: Search) -> bool:
        """True if scores are renormalized after the processors, for every strategy."""
        return False

    def processes_logits(self, search: Search) -> bool:
        """True if processors see the logits of a single member instead of log-probabilities."""
        return False


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
