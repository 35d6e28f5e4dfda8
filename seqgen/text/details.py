"""Optional fields of hypotheses, which need another pass of the models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seqgen.generation.finished import Ranking
from seqgen.generation.scorer import SequenceScorer
from seqgen.structures import Batch
from seqgen.text.results import TextHypothesis


@dataclass(frozen=True)
class Details:
    """Which optional fields of hypotheses are computed; see ``TextHypothesis``.

    Attributes:
        attention: attention and alignment.
        scores: ``model_score`` and ``member_scores``; requires another pass of the models over the hypotheses.
        hidden: ``hidden``; requires another pass, too.
        internals: ``internals``; requires another pass, too.
    """

    attention: bool = False
    scores: bool = False
    hidden: bool = False
    internals: bool = False

    @property
    def rescores(self) -> bool:
        """Whether the models make another pass over the hypotheses."""
        return self.scores or self.hidden or self.internals

    def added(
        self, items: Sequence[TextHypothesis], batch: Batch, scorer: SequenceScorer, ranking: Ranking
    ) -> list[TextHypothesis]:
        """Fill the optional fields of hypotheses.

        Args:
            items: the hypotheses.
            batch: the source of each, with the hypothesis as target.
            scorer: makes the passes.
            ranking: the rule that turns log-probabilities into a score.

        Returns:
            The hypotheses with these fields.
        """
        found, lengths = list(items), [len(item.tokens) for item in items]
        if self.scores:
            scored = scorer.score(batch, lengths)
            totals = [one.hypothesis.positional_scores.sum() for one in scored]
            found = [
                replace(item, model_score=float(ranking.score(total, length)), member_scores=one.member_scores)
                for item, one, total, length in zip(found, scored, totals, lengths, strict=True)
            ]
        if self.hidden:
            features = scorer.features(batch)
            found = [
                replace(item, hidden=[rows[row, :length] for rows in features])
                for row, (item, length) in enumerate(zip(found, lengths, strict=True))
            ]
        if self.internals:
            internals = scorer.internals(batch, lengths)
            found = [replace(item, internals=own) for item, own in zip(found, internals, strict=True)]
        return found
