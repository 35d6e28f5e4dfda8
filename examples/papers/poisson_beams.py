"""Conditional Poisson stochastic beam search: every step samples the beams without replacement.

Meister, Amini, Vieira and Cotterell 2021, "Conditional Poisson Stochastic Beam Search". A candidate is a continuation
of a beam, or a hypothesis that has ended, with the probability ``p_n``. Of ``N`` candidates, a set of ``K`` is drawn ::

    P(Y) = prod_{n in Y} w_n / W(all, K),    w_n = p_n / (1 - p_n),    W(A, k) = sum_{Y in A, |Y| = k} prod_{n in Y} w_n
    W(A + B, k) = sum_j W(A, j) W(B, k - j)           (A and B are disjoint; here the two halves of a node of a tree)
    pi_n = P(n in Y) = w_n W(all but n, K - 1) / W(all, K)

The set is drawn from the root of the tree down: of ``k`` items of a node, ``j`` are in its left half. The product of
the ``pi`` of a hypothesis over all steps, also those after its end, is its inclusion probability ``pi(y)`` given the
other beams. The estimate ``sum_y p(y) / pi(y) f(y)`` (Horvitz and Thompson 1952) of the mean of any ``f`` over the
model's outputs is unbiased, because its expectation given the beams of a step is the estimate of that step. The score
of a hypothesis is ``log p(y) - log pi(y)``, and its field ``log_inclusion`` has the log of the product at each token::

    seqgen-generate common.user_dir=examples/papers/poisson_beams.py path=runs/a input=test.en
        generation.search=poisson_beams generation.nbest=5 format=json
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.extend import (
    BackPointers,
    BatchInfo,
    Candidates,
    ConfigError,
    EachRow,
    Hypothesis,
    RandomSearch,
    Ranking,
    Scores,
    StepContext,
    option,
    register_search,
)


def product(a: Tensor, b: Tensor, size: int) -> Tensor:
    """The logs ``(..., size)`` of ``W(A + B, 0..size - 1)``, from those of ``A`` and ``B``; fewer if both are small."""
    size = min(a.size(-1) + b.size(-1) - 1, size)
    terms = a.new_full((*a.shape[:-1], min(a.size(-1), size), size), -torch.inf)
    for j in range(terms.size(-2)):
        width = min(b.size(-1), size - j)
        terms[..., j, j : j + width] = a[..., j : j + 1] + b[..., :width]
    return terms.logsumexp(-2)


def sample(odds: Tensor, count: int, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw ``count`` of the items of each row, or all that are possible.

    Args:
        odds: ``(rows, N)`` float64 ``log w``; ``-inf`` for impossible items.
        count: ``K``.
        uniforms: ``(rows, levels, K)`` uniforms, for at most ``K`` nodes of each level of the tree.

    Returns:
        The items ``(rows, k)`` int64, in any order, and their ``log pi``; ``-inf`` in places without an item.
    """
    last = odds.size(1) - 1
    odds = torch.nn.functional.pad(odds, (0, (1 << last.bit_length()) - last - 1), value=-torch.inf)
    levels = [torch.stack([torch.zeros_like(odds), odds], dim=-1)]  # (rows, nodes, degrees); the leaves come first
    while levels[-1].size(1) > 1:
        levels.append(product(levels[-1][:, 0::2], levels[-1][:, 1::2], count + 1))

    def at(level: Tensor, nodes: Tensor) -> Tensor:
        return level.gather(1, nodes.unsqueeze(-1).expand(-1, -1, level.size(-1)))

    numbers = total = (odds > -torch.inf).sum(1, keepdim=True).clamp(max=count)
    nodes = torch.zeros_like(total)
    for depth, level in enumerate(reversed(levels[:-1])):
        left, right, widest = at(level, 2 * nodes), at(level, 2 * nodes + 1), level.size(-1) - 1
        others = numbers.unsqueeze(-1) - torch.arange(widest + 1, device=odds.device)  # in the right half
        terms = left + right.gather(-1, others.clamp(0, widest)).where(others == others.clamp(0, widest), -torch.inf)
        sums = (terms - terms.amax(-1, keepdim=True)).exp().cumsum(-1)
        drawn = (sums <= uniforms[:, depth, : nodes.size(1), None] * sums[..., -1:]).sum(-1)
        nodes, numbers = torch.cat([2 * nodes, 2 * nodes + 1], 1), torch.cat([drawn, numbers - drawn], 1)
        kept = numbers.sign().argsort(dim=1, descending=True, stable=True)[:, :count]  # nodes with items
        nodes, numbers = nodes.gather(1, kept), numbers.gather(1, kept)
    rest, place = odds.new_zeros(*nodes.shape, 1), nodes
    for level in levels[:-1]:
        rest, place = product(rest, at(level, place.bitwise_xor(1)), count), place // 2
    fewer = (total - 1).clamp(min=0).unsqueeze(-1).expand(-1, nodes.size(1), -1)
    included = odds.gather(1, nodes) + rest.gather(-1, fewer).squeeze(-1) - levels[-1][:, 0].gather(1, total)
    return nodes.clamp(max=last), included.masked_fill(numbers == 0, -torch.inf).clamp(max=0.0)


@dataclass
class PoissonBeamsConfig:
    """Configuration of conditional Poisson stochastic beam search; its fields are the keys ``search.FIELD``."""

    seed: int = option(1, "seed of the random numbers", minimum=0)


@register_search("poisson_beams", config=PoissonBeamsConfig)
class PoissonBeams(RandomSearch):
    """Samples the beams of each step without replacement; see above."""

    changes_scores = True  # those of hypotheses are weights
    sentence_state = ("ids", "lprobs", "included")
    lprobs = included = torch.zeros(0, 0)  # (sentences, beam) float64, log p and log pi of each place

    def begin(self, batch: BatchInfo) -> Self:
        """Begin with one beam, since all prefixes are equal."""
        search = super().begin(batch)
        search.lprobs = torch.eye(1, batch.beam_size, device=batch.device).log().double().repeat(len(search.ids), 1)
        search.included = torch.zeros_like(search.lprobs)
        return search

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> Ended:
        """See ``Search.finished``."""
        if ranking.coverage or ranking.len_penalty != 1 or early_stopping != "false":
            raise ConfigError(
                "outputs are ranked by weight; remove length_penalty, coverage_penalty and early_stopping"
            )
        return Ended(batch, ranking, self)

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """Choose ``beam`` of all continuations and ended hypotheses; see ``Search.step``."""
        lprobs, so_far = scores.lprobs(), scores.beams
        beam, vocab = lprobs.shape[1:]
        ended = torch.nn.functional.pad(self.lprobs.unsqueeze(2), (0, vocab - 1), value=-torch.inf)
        totals = (self.lprobs.unsqueeze(2) + lprobs).where((so_far != -torch.inf).unsqueeze(2), ended).flatten(1)
        bounded = totals.clamp(max=-1e-12)  # w is finite
        odds = bounded - (-bounded.expm1()).log()

        levels, places = (torch.arange(size, device=odds.device) for size in (odds.size(1).bit_length(), beam))
        entries, included = sample(odds, beam, self.uniforms(31, context.step, levels, places))
        parents, tokens, empty = entries // vocab, entries % vocab, included == -torch.inf
        self.lprobs = totals.gather(1, entries).masked_fill(empty, -torch.inf)
        self.included = (self.included.gather(1, parents) + included).masked_fill(empty, 0.0)
        found = (so_far.unsqueeze(2) + lprobs).flatten(1).gather(1, entries)
        found = found.masked_fill(empty, -torch.inf).masked_fill(totals.isnan().any(1, keepdim=True), torch.nan)
        return Candidates(found, tokens, parents)

    def token_fields(self, candidates: Candidates, context: StepContext) -> Mapping[str, Tensor]:
        """``log_inclusion``: the log of the product of inclusion probabilities up to each token."""
        return {"log_inclusion": self.included}


class Ended(EachRow):
    """The ended hypotheses, each in its place, of ``search``."""

    def __init__(self, batch: BatchInfo, ranking: Ranking, search: PoissonBeams):
        super().__init__(batch, ranking)
        self.search = search

    def finalize(self, candidates: Candidates, ends: Tensor, *args: Any) -> Candidates:
        """Move ended hypotheses to the places where they stay, and add those that end now."""
        for name in ("lengths", "beams", "tokens", "cumulative"):
            setattr(self, name, getattr(self, name).gather(1, candidates.beams))
        self.lengths = self.lengths.masked_fill(self.search.lprobs == -torch.inf, 0)
        active = super().finalize(candidates, ends, *args)
        self.scores = (self.search.lprobs - self.search.included).to(self.cumulative.dtype)
        return active

    def hypotheses(self, sentences: Tensor, backpointers: BackPointers) -> list[list[Hypothesis]]:
        """Let the last value of ``log_inclusion`` include the steps after the end."""
        results = super().hypotheses(sentences, backpointers)
        for hypothesis in (hypothesis for found in results for hypothesis in found):
            hypothesis.fields["log_inclusion"][-1] = hypothesis.positional_scores.sum() - hypothesis.score
        return results
