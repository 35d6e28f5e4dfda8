"""Threshold pruning: beams whose width differs by sentence and step.

Freitag and Al-Onaizan 2017, "Beam Search Strategies for Neural Machine Translation", drop a candidate ``c`` of a
list ``C`` of candidates if one of these holds (``p`` is the probability of the output, ``w`` that of its last token):

    relative   p(c) < relative * max p(C)              absolute   log p(c) < max log p(C) - absolute
    local      w(c) < local * max w(C)                 per_beam   that many candidates of the same beam are better

``seqgen-generate common.user_dir=examples/papers/dynamic_beams.py path=runs/a input=test.en generation.beam=5
generation.nbest=5 generation.search=threshold_pruning search.absolute=2.5 search.local=0.02 search.per_beam=3``

``C`` are the ``2 * beam`` candidates of beam search. Expect shorter n-best lists and fewer steps where the model is
certain. The rows of dropped beams are still computed until their sentence is done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from seqgen.extend import BeamSearch, Candidates, Scores, StepContext, option, register_search


@dataclass
class ThresholdPruningConfig:
    """Configuration of threshold pruning; its fields are the keys ``search.FIELD``."""

    absolute: float = option(2.5, "largest distance to the best candidate in nats; 0: no limit", minimum=0)
    relative: float = option(0.0, "least share of the best candidate's probability; 0: no limit", minimum=0, maximum=1)
    local: float = option(0.0, "the same for the probability of the last word; 0: no limit", minimum=0, maximum=1)
    per_beam: int = option(0, "most candidates that continue the same beam; 0: no limit", minimum=0)


@register_search("threshold_pruning", config=ThresholdPruningConfig)
class ThresholdPruning(BeamSearch):
    """Beam search that drops candidates much worse than the best one; see ``ThresholdPruningConfig``."""

    can_merge = True

    def __init__(self, absolute: float = 2.5, relative: float = 0.0, local: float = 0.0, per_beam: int = 0):
        super().__init__()
        limits = (absolute or math.inf, -math.log(relative) if relative else math.inf)
        self.distance, self.per_beam = min(limits), per_beam
        self.local = -math.log(local) if local else math.inf

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """Choose as beam search does among the best of each beam, ``(sentences, 2 * beam)``; then drop candidates."""
        if 0 < self.per_beam < scores.size:
            lprobs = scores.lprobs()
            worst = lprobs.topk(self.per_beam, dim=-1).values[..., -1:]
            scores = Scores(lprobs.masked_fill(lprobs < worst, -torch.inf), scores.beams)
        found = super().step(context, scores)
        assert context.scores is not None
        words = found.scores - context.by_sentence(context.scores).gather(1, found.beams)
        words = words.masked_fill(found.scores == -torch.inf, -torch.inf)
        dropped = found.scores < found.scores[:, :1] - self.distance
        dropped = dropped | (words < words.amax(1, keepdim=True) - self.local)
        return found.without(dropped)
