"""A search strategy: beam search that drops candidates far below the best one (Freitag and Al-Onaizan 2017).

``seqgen-generate common.user_dir=examples/extending/search_strategy.py path=runs/a input=test.en
generation.search=threshold search.delta=2.0``
"""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.extend import BeamSearch, Candidates, Scores, StepContext, option, register_search


@dataclass
class ThresholdConfig:
    """Configuration of threshold pruning; its fields are the keys ``search.FIELD``."""

    delta: float = option(2.5, "candidates whose score is this far below the best one are dropped, in nats", minimum=0)


@register_search("threshold", config=ThresholdConfig, presets={"threshold_tight": ThresholdConfig(delta=0.5)})
class ThresholdSearch(BeamSearch):
    """Beam search that keeps fewer beams at steps where the best candidate is far ahead.

    Args:
        delta: the largest allowed distance to the best candidate of the sentence, in nats.
    """

    # A subclass that overrides `step` loses these flags unless it states them again; decoding is then slower.
    can_merge = True  # `step` does not read context.step, tokens or source ids

    def __init__(self, delta: float):
        super().__init__()
        self.delta = delta

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """Choose as beam search does, then set the scores of dropped candidates to ``-inf``.

        Args:
            context: the step.
            scores: the scores of the next token after each beam.

        Returns:
            ``2 * beam`` candidates of each sentence, best first; a score of ``-inf`` means that there is no candidate.
        """
        found = super().step(context, scores)
        too_low = found.scores < found.scores[:, :1] - self.delta
        return found.without(too_low)
