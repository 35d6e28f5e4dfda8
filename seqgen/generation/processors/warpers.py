"""Processors of whole rows: warpers (truncation sampling), the temperature, and the repair of invalid scores.

A warper forbids improbable tokens and keeps at least ``keep`` tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqgen.generation.candidates import best_continuations
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor

_FEW = 512
"""Number of tokens that are sorted first; the whole vocabulary is sorted only if these are not enough."""


class Warper(LogitsProcessor):
    """Forbids improbable tokens; a subclass implements ``improbable``.

    Args:
        keep: minimum number of tokens that are kept.
    """

    shift_invariant = True

    def __init__(self, keep: int = 1):
        self.keep = keep

    def improbable(self, scores: Tensor) -> Tensor:
        """Find the tokens to forbid.

        Args:
            scores: ``(rows, V)`` log-probabilities in nats, or these plus a constant for each row.

        Returns:
            ``(rows, V)`` bool, true for tokens that are forbidden.
        """
        raise NotImplementedError

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return lprobs.masked_fill(self.improbable(lprobs), -torch.inf)

    def _below_best(self, scores: Tensor, count: int) -> Tensor:
        """Which tokens score less than the ``count``-th best: ``(rows, V)`` bool."""
        if count == 1:
            return scores < scores.amax(1, keepdim=True)
        best = best_continuations(scores.unsqueeze(1), scores.new_zeros(len(scores), 1), min(count, scores.size(1)))
        return scores < best.scores[:, -1:]


class TopK(Warper):
    """Keeps the k most probable tokens, and those that tie with the k-th (Fan et al. 2018).

    Args:
        k: number of tokens that are kept; ``keep`` if that is larger.
        keep: see ``Warper``.
    """

    def __init__(self, k: int, keep: int = 1):
        super().__init__(keep)
        self.k = k

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        return self._below_best(scores, max(self.k, self.keep))


class TopP(Warper):
    """Keeps the smallest set of most probable tokens whose total probability is at least p (Holtzman et al. 2020).

    Tokens that tie with the least probable one of the set are kept too.

    Args:
        p: total probability, between 0 and 1.
        keep: see ``Warper``.
    """

    def __init__(self, p: float, keep: int = 1):
        super().__init__(keep)
        self.p = p

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        lprobs = scores.log_softmax(1)
        for count in _counts(scores.size(1)):
            best = lprobs.topk(count, dim=1).values
            # probabilities .4 .3 .2 .1 have the cumulative sums .4 .7 .9 1.; for p = .6, one sum is below p: keep two
            needed = (best.exp().cumsum(1) < self.p).sum(1, keepdim=True).clamp(min=self.keep - 1)
            if bool((needed < count).all()):
                break
        return lprobs < best.gather(1, needed.clamp(max=scores.size(1) - 1))


class MinP(Warper):
    """Keeps tokens whose probability is at least p times the highest one (Nguyen et al. 2024).

    Args:
        p: threshold as a share of the highest probability, between 0 and 1.
        keep: see ``Warper``.
    """

    def __init__(self, p: float, keep: int = 1):
        super().__init__(keep)
        self.p = p

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        threshold = scores.amax(1, keepdim=True) + (math.log(self.p) if self.p > 0 else -math.inf)
        return (scores < threshold) & self._below_best(scores, self.keep)


class Typical(Warper):
    """Keeps the tokens whose information content, ``-log p``, is closest to the entropy (Meister et al. 2023).

    Args:
        mass: total probability of the smallest set of most typical tokens that is kept.
        keep: see ``Warper``; here the most typical tokens are kept.
    """

    def __init__(self, mass: float, keep: int = 1):
        super().__init__(keep)
        self.mass = mass

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        lprobs = scores.log_softmax(1)
        entropy = -(lprobs * lprobs.exp()).nansum(1, keepdim=True)  # 0 * -inf counts as 0
        distance = (-lprobs - entropy).abs()
        for count in _counts(scores.size(1)):
            nearest, order = distance.topk(count, dim=1, largest=False)
            # as in ``TopP``, but sorted by typicality
            needed = (lprobs.gather(1, order).exp().cumsum(1) < self.mass).sum(1, keepdim=True).clamp(min=self.keep - 1)
            if bool((needed < count).all()):
                break
        return distance > nearest.gather(1, needed.clamp(max=scores.size(1) - 1))


class Epsilon(Warper):
    """Keeps tokens with a probability of at least epsilon (Hewitt et al. 2022).

    Args:
        epsilon: between 0 and 1.
        keep: see ``Warper``.
    """

    def __init__(self, epsilon: float, keep: int = 1):
        super().__init__(keep)
        self.epsilon = epsilon

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        return (scores.softmax(1) < self.epsilon) & self._below_best(scores, self.keep)


class Eta(Warper):
    """Keeps tokens with a probability of at least ``min(epsilon, sqrt(epsilon) * exp(-entropy))`` (Hewitt et al. 2022).

    The entropy is that of the distribution, in nats: the threshold is lower where the entropy is high.

    Args:
        epsilon: between 0 and 1.
        keep: see ``Warper``.
    """

    def __init__(self, epsilon: float, keep: int = 1):
        super().__init__(keep)
        self.epsilon = epsilon

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        lprobs = scores.log_softmax(1)
        probabilities = lprobs.exp()
        entropy = -(lprobs * probabilities).nansum(1, keepdim=True)
        threshold = (math.sqrt(self.epsilon) * (-entropy).exp()).clamp(max=self.epsilon)
        return (probabilities < threshold) & self._below_best(scores, self.keep)


def _counts(vocab: int) -> tuple[int, int]:
    """Numbers of tokens to sort, tried in this order: ``_FEW``, then the whole vocabulary."""
    return min(_FEW, vocab), vocab


class Temperature(LogitsProcessor):
    """Divides the scores by the temperature.

    Args:
        temperature: values above 1 make the distribution flatter, values below 1 sharper.
    """

    def __init__(self, temperature: float):
        self.temperature = temperature

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return lprobs / self.temperature


class Renormalize(LogitsProcessor):
    """Renormalizes the scores with a log-softmax. A row in which all tokens are forbidden stays ``-inf``."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        nothing = lprobs.amax(1, keepdim=True) == -torch.inf
        return lprobs.log_softmax(-1).masked_fill_(nothing, -torch.inf)


class RemoveInvalid(LogitsProcessor):
    """Replaces NaN by 0 and ``inf`` by the largest finite value; ``-inf`` stays, since it marks forbidden tokens."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return lprobs.nan_to_num(nan=0.0, posinf=torch.finfo(lprobs.dtype).max, neginf=-torch.inf)
