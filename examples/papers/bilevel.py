"""Bi-level beam search for ensembles, EBBS (Wen, Shayegh, Huang, Cao and Mou 2024, "EBBS: An Ensemble with Bi-Level
Beam Search for Zero-Shot Machine Translation", algorithm 1).

All members share one upper-level beam of prefixes y with scores s(y). At every step:

    lower level   member k keeps the n best continuations by s_k(y + v) = s(y) + log p_k(v | y, x): its beam B_k
    upper level   s(y + v) = log sum_k w_k [y + v in B_k] exp s_k(y + v): the best ones are the next shared beam

This is soft voting: a member gives no vote to continuations outside its own beam. With n as large as the vocabulary, it
is beam search with the mean of probabilities. The weights w_k sum to one; the paper sums the votes, which adds the
constant log K to the score of each token and does not change the order of hypotheses of the same length.

``seqgen-generate common.user_dir=examples/papers/bilevel.py path=[runs/a,runs/b] input=test.en generation.beam=5
generation.search=bilevel search.lower_beam=5 combination.weights=[2,1]``

The paper's members are one multilingual model that reads the source and translations of it into other languages:
``path=[runs/m,runs/m] generation.member_sources=[field1,field2]``. Expect outputs close to those of beam search, which
differ where the members disagree: a token that all members find mediocre is in no lower-level beam, and cannot win. As
in the paper, a hypothesis that ends occupies a place of the upper-level beam.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import (
    MEMBER_LOGITS,
    BeamSearch,
    Candidates,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    ProbabilityMean,
    Scores,
    Session,
    StepContext,
    best_continuations,
    option,
    register_search,
)


class BilevelSession(Session):
    """Gives the search the members' weights.

    Args:
        setup: see ``Session``; its search is a ``BilevelSearch``.
        request: see ``Session``.

    Raises:
        ConfigError: the ensemble has a combination other than the mean of probabilities.
    """

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        ensemble = setup.ensemble
        if type(ensemble.combination) is not ProbabilityMean:
            raise ConfigError(
                f"search=bilevel combines the members by votes, which {type(ensemble.combination).__name__} does not "
                "do; remove generation.combination and generation.guidance_scale, or choose another search"
            )
        super().__init__(setup, request)
        assert isinstance(self.search, BilevelSearch)
        self.search.weights = ensemble.combination.attention_weights(len(ensemble.members))


@dataclass
class BilevelConfig:
    """Configuration of bi-level beam search; its fields are the keys ``search.FIELD``."""

    lower_beam: int = option(0, "continuations that each member votes for; 0 for generation.beam", minimum=0)


@register_search("bilevel", config=BilevelConfig)
class BilevelSearch(BeamSearch):
    """Beam search in which each member votes for the continuations in its own lower-level beam.

    Args:
        lower_beam: ``n``, the size of the lower-level beams; 0 for the beam size.
    """

    needs = frozenset({MEMBER_LOGITS})
    applies_processors = True  # each member's scores are processed before it chooses: no vote for a forbidden token
    session_class = BilevelSession

    def __init__(self, lower_beam: int = 0):
        super().__init__()
        self.lower_beam = lower_beam
        self.weights: list[float] = []

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """Choose the ``beam`` continuations with the most votes.

        Args:
            context: the step, with each member's ``(rows, V)`` logits.
            scores: those of the combination, of which only the cumulative scores are used.

        Returns:
            ``2 * beam`` candidates of each sentence, best first; those after the first ``beam`` have score ``-inf``.
        """
        assert context.outputs.member_logits is not None
        beam = scores.beams.size(1)
        votes = [
            self.votes(context, logits, scores.beams) + math.log(weight)
            for weight, logits in zip(self.weights, context.outputs.member_logits, strict=True)
            if weight > 0
        ]
        upper = torch.stack(votes).logsumexp(0)  # (sentences, beam, V), or (sentences, 1, V) at the first step
        best = best_continuations(upper, torch.zeros_like(upper[..., 0]), beam)
        return best.padded(self.candidates_per_beam * beam)

    def votes(self, context: StepContext, logits: Tensor, scores: Tensor) -> Tensor:
        """The lower level: the cumulative scores of the continuations in a member's own beam.

        Args:
            context: the step.
            logits: ``(rows, V)`` of the member.
            scores: ``(sentences, beam)`` cumulative scores of the shared beam.

        Returns:
            ``(sentences, beam, V)`` cumulative scores, ``-inf`` outside the member's beam. At the first step all beams
            are equal, so that only the first counts: ``(sentences, 1, V)``.
        """
        assert context.process is not None
        totals = context.process(context.by_sentence(logits.log_softmax(-1))) + scores.unsqueeze(-1)
        totals = totals[:, :1] if context.step == 0 else totals
        flat = totals.flatten(1)
        best, entries = flat.topk(min(self.lower_beam or scores.size(1), flat.size(1)), dim=1)
        return torch.full_like(flat, -torch.inf).scatter(1, entries, best).view_as(totals)
