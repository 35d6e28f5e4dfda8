"""Determinantal beam search: each step keeps a set of beams that are probable and differ from each other.

Meister, Forster and Cotterell 2021, "Determinantal Beam Search". Beam search keeps the set ``Y`` of ``k`` prefixes with
the largest ``log det(D_Y)``, where ``D`` is the diagonal matrix of their probabilities. This search maximizes ::

    log det(D_Y + w K_Y),    K(s, t) = S(s, t) / sqrt(S(s, s) S(t, t))
    S(s, t) = sum over common subsequences u of n tokens, at places i of s and j of t, of decay ** (span(i) + span(j))

with the string subsequence kernel ``S`` (Lodhi et al. 2002) over the generated tokens; ``w = 0`` is beam search. The
set is found greedily (Chen, Zhang and Zhou 2018), among the most probable continuations. Here ``D`` is scaled so that
the probabilities of these continuations sum to 1, and ``w`` has the same meaning at each step::

    seqgen-generate common.user_dir=examples/papers/determinantal_beams.py path=runs/a input=test.en
        generation.search=determinantal generation.max_len_b=40 search.weight=0.5 generation.beam=5
        generation.nbest=5

Expect n-best lists with more distinct n-grams, and scores a little lower than those of beam search.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.extend import (
    BatchInfo,
    Candidates,
    Scores,
    Search,
    StepContext,
    gather_beams,
    option,
    register_search,
)


@dataclass
class DeterminantalConfig:
    """Configuration of determinantal beam search; its fields are the keys ``search.FIELD``."""

    weight: float = option(0.1, "w, the weight of diversity; 0 is beam search", minimum=0)
    order: int = option(2, "n, tokens in the subsequences that the kernel compares", minimum=1)
    decay: float = option(0.5, "factor for each token that a subsequence spans", minimum=0.001, maximum=1)
    pool: int = option(3, "continuations among which the set is chosen, for each beam", minimum=2)


@register_search("determinantal", config=DeterminantalConfig)
class DeterminantalBeams(Search):
    """Beam search whose beams are chosen as a set.

    Args:
        weight: w.
        order: n.
        decay: factor for each token that a subsequence spans.
        pool: continuations among which the set is chosen, for each beam.
    """

    def __init__(self, weight: float = 0.1, order: int = 2, decay: float = 0.5, pool: int = 3):
        self.weight, self.order, self.decay, self.pool = weight, order, decay, pool
        self.num_candidates, self.end_tokens = 0, list[int]()

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Search.begin``."""
        search = copy.copy(super().begin(batch))
        search.num_candidates, search.end_tokens = batch.num_candidates, list(batch.end_tokens)
        return search

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """Choose candidates one after the other, each as the one that increases the determinant most.

        Args:
            context: the step.
            scores: the scores of the next token after each beam.

        Returns:
            Candidates of each sentence in the order in which they were chosen, ``beam`` of which can continue.
        """
        beam = scores.beams.size(1)
        expanded = scores if context.step else scores.of_beams(slice(1))  # at the first step all beams are equal
        pool = expanded.best(max(self.pool * beam, self.num_candidates))
        prefixes = gather_beams(context.by_sentence(context.tokens), pool.beams)
        similarity = subsequence_kernel(torch.cat([prefixes, pool.tokens.unsqueeze(2)], 2), self.order, self.decay)
        exists = pool.scores > -torch.inf
        quality = pool.scores.double().masked_fill(~exists.any(1, keepdim=True), 0.0).softmax(1)
        matrix = quality.diag_embed() + self.weight * similarity
        chosen = pool.gather(greedy_map(matrix, exists, self.num_candidates))
        continues = ~torch.isin(chosen.tokens, chosen.tokens.new_tensor(self.end_tokens))
        surplus = continues & (continues.cumsum(1) > beam)  # so that no rule replaces one of the set
        return chosen.without(surplus)


def greedy_map(matrix: Tensor, exists: Tensor, count: int) -> Tensor:
    """Choose items one after the other, each as the one that increases ``log det`` of the chosen part most.

    Args:
        matrix: ``(sentences, P, P)`` positive semi-definite.
        exists: ``(sentences, P)`` bool, which items can be chosen.
        count: how many are chosen, at most ``P``.

    Returns:
        ``(sentences, count)`` int64; items that do not exist are last.
    """
    gains = torch.diagonal(matrix, dim1=1, dim2=2).clone()  # what the determinant is multiplied with
    factors = matrix.new_zeros(*gains.shape, count)  # (sentences, P, count): rows of the Cholesky factor
    free = exists.clone()
    found: list[Tensor] = []
    for place in range(count):
        # items that do not exist come after all others, in their order
        best = gains.clamp(min=0.0).masked_fill(~free, -1.0).masked_fill(~exists, -0.5)
        best = best.scatter(1, torch.stack(found, 1), -2.0) if found else best
        item = best.argmax(1, keepdim=True)
        found.append(item.squeeze(1))
        free = free.scatter(1, item, False)
        index = item.unsqueeze(2)
        row = matrix.gather(1, index.expand(-1, 1, matrix.size(2))).squeeze(1)
        columns = factors.gather(1, index.expand(-1, 1, count))
        pivot = gains.gather(1, item).clamp(min=1e-300).sqrt()
        factor = (row - (factors * columns).sum(2)) / pivot
        factors[:, :, place] = factor
        gains = gains - factor**2
    return torch.stack(found, 1)


def subsequence_kernel(tokens: Tensor, order: int, decay: float) -> Tensor:
    """The normalized string subsequence kernel of all pairs of sequences of equal length.

    Args:
        tokens: ``(sentences, P, T)`` int64.
        order: tokens of the subsequences.
        decay: factor for each token that a subsequence spans.

    Returns:
        ``(sentences, P, P)`` float64 with a diagonal of 1; sequences shorter than ``order`` are not similar.
    """
    places = torch.arange(tokens.size(2), device=tokens.device)
    gaps = (places.unsqueeze(1) - places).double()
    step = (decay**gaps).masked_fill(gaps <= 0, 0.0)  # (T, T): from an earlier place to a later one
    equal = (tokens.unsqueeze(2).unsqueeze(4) == tokens.unsqueeze(1).unsqueeze(3)).double()  # (sentences, P, P, T, T)
    ending = equal * decay**2  # weight of the common subsequences that end at places i and j
    for _ in range(order - 1):
        ending = equal * (step @ ending @ step.T)
    sums = ending.sum((3, 4))
    norms = torch.diagonal(sums, dim1=1, dim2=2).clamp(min=1e-300).sqrt()
    similarity = sums / (norms.unsqueeze(1) * norms.unsqueeze(2))
    return similarity.diagonal_scatter(torch.ones_like(norms), dim1=1, dim2=2)
