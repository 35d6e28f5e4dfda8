"""Union of the top k, UniTE (Yao, Wu, Liu, Luo, Han, Liu, Guo and Song 2025, "Determine-Then-Ensemble: Necessity of
Top-k Union for Large Language Model Ensembling").

At each step, the candidates are the texts of the k most probable tokens of any member. A member ``i`` gives a candidate
that is a token of its vocabulary the probability of this token, and any other one that of the first token into which it
divides the candidate. These are renormalized over the candidates ``U`` and averaged::

    p(u) = sum_i w_i p_i(u) / sum over v in U of p_i(v)

Texts that a member cannot generate, such as characters that its vocabulary lacks, are no candidates.
The chosen text is appended, and each member continues with its own tokens of the text. ::

    seqgen-generate common.user_dir=examples/papers/joint_texts path=[runs/a,runs/bytes_lm] input=test.en
        generation.member_sources=[input,empty] generation.combination=union combination.k=10

The paper is greedy and divides all texts anew at each step; here a member to which all texts were tokens appends them.
With one vocabulary, this is the mean of probabilities over the union.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import MeanConfig, ProbabilityMean, StepContext, option, register_combination

from .joint import JointRule


@dataclass
class UnionConfig(MeanConfig):
    """Configuration of the union; its fields are the keys ``combination.FIELD``."""

    k: int = option(10, "tokens of each member that are candidates", minimum=1)


@register_combination("union", config=UnionConfig)
class Union(JointRule, ProbabilityMean):
    """The mean of probabilities over the union of the members' most probable texts.

    Args:
        weights: weight of each member; empty for equal weights.
        k: candidates of each member.
    """

    keeps_single = False
    certifiable = False
    ignores_context = False

    def __init__(self, weights: Sequence[float] = (), k: int = 10):
        super().__init__(weights)
        self.k = k

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """See ``Combination``."""
        union = torch.zeros_like(lprobs[0], dtype=torch.bool)
        for scores in self.own(lprobs):
            best = scores.topk(min(self.k, scores.size(-1)), dim=-1)
            union |= torch.zeros_like(union).scatter(-1, best.indices, best.values > -torch.inf)
        return super().__call__(self.among(lprobs, context, union), context)
