"""Beam search and greedy search by name; diverse beam search and diverse siblings, whose hypotheses differ more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from seqgen.config import option
from seqgen.core.beam_search import BeamSearch, Greedy
from seqgen.core.candidates import Candidates
from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError
from seqgen.core.scores import Scores
from seqgen.registry import register_search

register_search("beam")(BeamSearch)
register_search("greedy")(Greedy)


@dataclass
class DiverseBeamConfig:
    """Configuration of diverse beam search."""

    groups: int = option(2, "number of groups that the beam is split into", minimum=1)
    strength: float = option(
        0.5, "penalty of a token for each earlier group that chose it at this step, in nats", minimum=0
    )


@register_search("diverse_beam", config=DiverseBeamConfig)
class DiverseBeamSearch(BeamSearch):
    """Groups of beams, each of which avoids the tokens of the groups before it (Vijayakumar et al. 2018, section 4).

    The groups choose one after the other, at every step. The score of a token is lowered by ``strength`` for each time
    that it is among the candidates of an earlier group (Hamming diversity), and the cumulative scores include this
    penalty. Beam ``i`` belongs to group ``i % groups``, and the candidates are interleaved rank by rank, so that the
    first ``beam`` candidates are the best ones of each group. As in fairseq, a group is a set of ranks: when a
    hypothesis has finished, those after it move up, and may be in another group at the next step. Under Hugging Face's
    rules, ``HuggingFaceDiverseBeam`` is used instead.

    Args:
        groups: number of groups; the beam size must be a multiple of it. One group is plain beam search.
        strength: the penalty, in nats.
    """

    can_merge = True
    changes_scores = True

    def __init__(self, groups: int = 2, strength: float = 0.5):
        self.groups, self.strength = groups, strength

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Search.begin``."""
        if batch.beam_size % self.groups:
            raise ConfigError(
                f"generation.beam={batch.beam_size} cannot be divided into search.groups={self.groups} groups of equal "
                "size; give a beam that is a multiple of it"
            )
        return super().begin(batch)

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``."""
        # (sentences, V), how often earlier groups have each token
        used = scores.values.new_zeros(len(scores.values), scores.size)
        chosen = []
        for group in range(self.groups):
            of_group = scores.of_beams(slice(group, None, self.groups))
            found = super().step(context, of_group.plus(-self.strength * used.unsqueeze(1)))
            used.scatter_add_(1, found.tokens, (found.scores > -torch.inf).to(used.dtype))
            # with 3 groups, beams 0 and 1 of group 2 are beams 2 and 5 of the sentence
            chosen.append(Candidates(found.scores, found.tokens, found.beams * self.groups + group))
        return Candidates.joined(chosen, interleaved=True)


@dataclass
class DiverseSiblingsConfig:
    """Configuration of diverse siblings search."""

    rate: float = option(0.5, "penalty of a candidate, in nats, times its rank in its beam, from 1", minimum=0)


@register_search("diverse_siblings", config=DiverseSiblingsConfig)
class DiverseSiblingsSearch(BeamSearch):
    """Beam search that penalizes continuations of the same beam (Li, Monroe and Jurafsky 2016, section 3.2).

    The score of the i-th best continuation of a beam is lowered by ``i * rate``, and the cumulative scores include this
    penalty. The first step, at which all beams are equal, is plain beam search.

    Args:
        rate: the penalty, in nats.
    """

    can_merge = True
    changes_scores = True

    def __init__(self, rate: float = 0.5):
        self.rate = rate

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``."""
        if context.step == 0:
            return super().step(context, scores)
        totals = scores.totals()
        beam, vocab = totals.shape[1:]
        count = self.candidates_per_beam * beam
        siblings = min(count, vocab)
        children, tokens = totals.topk(siblings, dim=2)
        children = children - self.rate * torch.arange(1, siblings + 1, device=totals.device)
        # (sentences, beam, siblings) -> (sentences, beam * siblings): entry 2 * siblings + 1 is a child of beam 2
        best, entries = children.flatten(1).topk(min(count, beam * siblings), dim=1)
        candidates = Candidates(best, tokens.flatten(1).gather(1, entries), entries // siblings)
        return candidates.padded(count)
