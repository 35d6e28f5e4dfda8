"""A user's search strategy; tests import it only through ``common.user_dir``."""

from dataclasses import dataclass

from seqgen.extend import BeamSearch, Candidates, Scores, StepContext, option, register_search


@dataclass
class PruningConfig:
    delta: float = option(5.0, "candidates this many nats below the best one are dropped", minimum=0)


@register_search("pruning", config=PruningConfig)
class PruningSearch(BeamSearch):
    """Beam search that drops candidates far below the best one of their sentence."""

    def __init__(self, delta: float = 5.0):
        super().__init__()
        self.delta = delta

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        found = super().step(context, scores)
        return found.without(found.scores < found.scores[:, :1] - self.delta)
