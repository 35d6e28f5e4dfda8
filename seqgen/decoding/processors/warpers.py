"""Processors of whole rows: warpers (truncation sampling), the temperature, and the repair of invalid scores.

A warper forbids improbable tokens and keeps at least ``keep`` tokens.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from seqgen.core.candidates import best_continuations, normalized
from seqgen.core.context import StepContext
from seqgen.core.processors import LogitsProcessor

_NOTHING = -80.0
"""A log-probability that adds nothing to a sum; the exponentials of smaller ones would be computed slowly."""


class Warper(LogitsProcessor):
    """Forbids improbable tokens; a subclass implements ``improbable``.

    Args:
        threshold: the number or probability that decides how many tokens are kept.
        keep: minimum number of tokens that are kept; at least 2 in beam search.
    """

    shift_invariant = True

    def __init__(self, threshold: float, keep: int = 1):
        self.threshold, self.keep = threshold, keep

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
        """``(rows, V)`` bool, true for tokens that score less than the ``count``-th best."""
        if count == 1:
            return scores < scores.amax(1, keepdim=True)
        best = best_continuations(scores.unsqueeze(1), scores.new_zeros(len(scores), 1), min(count, scores.size(1)))
        return scores < best.scores[:, -1:]

    def _last_needed(self, lprobs: Tensor) -> Tensor:
        """The place of the last token that is needed for a total probability of ``threshold``.

        Args:
            lprobs: ``(rows, V)`` log-probabilities, in the order in which tokens are kept.

        Returns:
            ``(rows, 1)`` int64.
        """
        # probabilities .4 .3 .2 .1 have the cumulative sums .4 .7 .9 1.; for .6, one sum is below: two are needed
        sums = lprobs.clamp(min=_NOTHING).exp().cumsum(1)
        below = torch.searchsorted(sums, torch.full_like(sums[:, :1], self.threshold))
        return below.clamp(min=self.keep - 1).clamp(max=lprobs.size(1) - 1)


class TopK(Warper):
    """Keeps the k most probable tokens, and those that tie with the k-th (Fan et al. 2018).

    Args:
        threshold: k, the number of tokens that are kept; ``keep`` if that is larger.
        keep: see ``Warper``.
    """

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        return self._below_best(scores, max(int(self.threshold), self.keep))


class TopP(Warper):
    """Keeps the smallest set of most probable tokens whose total probability is at least p (Holtzman et al. 2020).

    Tokens that tie with the least probable one of the set are kept too.

    Args:
        threshold: p, the total probability, between 0 and 1.
        keep: see ``Warper``.
    """

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        lprobs = scores.log_softmax(1)
        ranked = -_sorted(-lprobs)
        return lprobs < ranked.gather(1, self._last_needed(ranked))


class MinP(Warper):
    """Keeps tokens whose probability is at least p times the highest one (Nguyen et al. 2024).

    Args:
        threshold: p, a share of the highest probability, between 0 and 1.
        keep: see ``Warper``.
    """

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        least = scores.amax(1, keepdim=True) + (math.log(self.threshold) if self.threshold > 0 else -math.inf)
        return (scores < least) & self._below_best(scores, self.keep)


class Typical(Warper):
    """Keeps the tokens whose information content, ``-log p``, is closest to the entropy (Meister et al. 2023).

    Args:
        threshold: total probability of the smallest set of most typical tokens that is kept.
        keep: see ``Warper``; here the most typical tokens are kept.
    """

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        lprobs = scores.log_softmax(1)
        distances = (-lprobs - _entropy(lprobs)).abs()
        order = _order(distances)
        nearest, last = distances.gather(1, order), self._last_needed(lprobs.gather(1, order))
        return distances > nearest.gather(1, last)


class Epsilon(Warper):
    """Keeps tokens with a probability of at least epsilon (Hewitt et al. 2022).

    Args:
        threshold: epsilon, between 0 and 1.
        keep: see ``Warper``.
    """

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        return (scores.softmax(1) < self.threshold) & self._below_best(scores, self.keep)


class Eta(Warper):
    """Keeps tokens with a probability of at least ``min(epsilon, sqrt(epsilon) * exp(-entropy))`` (Hewitt et al. 2022).

    The entropy is that of the distribution, in nats: the threshold is lower where the entropy is high.

    Args:
        threshold: epsilon, between 0 and 1.
        keep: see ``Warper``.
    """

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Warper.improbable``."""
        lprobs = scores.log_softmax(1)
        least = (math.sqrt(self.threshold) * (-_entropy(lprobs)).exp()).clamp(max=self.threshold)
        return (lprobs.exp() < least) & self._below_best(scores, self.keep)


def _sorted(values: Tensor) -> Tensor:
    """The values of each row, ascending."""
    if _is_for_numpy(values):
        return torch.from_numpy(np.sort(values.numpy(), axis=1))
    return values.sort(dim=1).values


def _order(values: Tensor) -> Tensor:
    """The places of the values of each row, ascending by value."""
    if _is_for_numpy(values):
        return torch.from_numpy(np.argsort(values.numpy(), axis=1))
    return values.argsort(dim=1)


def _is_for_numpy(values: Tensor) -> bool:
    """True if NumPy can sort the values: on a CPU, its vectorized sort is many times faster than PyTorch's."""
    return values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64)


def _entropy(lprobs: Tensor) -> Tensor:
    """The entropy of each row in nats, ``(rows, 1)``."""
    return -(lprobs * lprobs.exp()).nansum(1, keepdim=True)  # 0 * -inf counts as 0


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
        return normalized(lprobs)


class RemoveInvalid(LogitsProcessor):
    """Replaces NaN by 0 and ``inf`` by the largest finite value; ``-inf`` stays, since it marks forbidden tokens."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return lprobs.nan_to_num(nan=0.0, posinf=torch.finfo(lprobs.dtype).max, neginf=-torch.inf)
