"""Rules: how the search ends. A toolkit's own rules are subclasses."""

from __future__ import annotations

from seqgen.core.component import BatchInfo
from seqgen.core.finished import FinishedHypotheses, FirstFinished, Ranking
from seqgen.core.search import Search


class Rules:
    """Plain rules: the first ``beam`` finished hypotheses are kept, and an output is cut at its maximum length."""

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
