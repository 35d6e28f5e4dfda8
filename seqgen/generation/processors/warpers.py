"""Cut-offs: which tokens are too improbable to be drawn. Each keeps at least ``keep`` tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.generation.candidates import best_continuations
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.registry import register_logits_processor

_FEW = 512
"""Where so many tokens are enough, the others are not sorted."""


class Cutoff(LogitsProcessor):
    """Forbids improbable tokens; a subclass implements ``improbable``.

    Args:
        keep: tokens that are kept whatever their probability.
    """

    shift_invariant = True

    def __init__(self, keep: int = 1):
        self.keep = keep

    def improbable(self, scores: Tensor) -> Tensor:
        """Which tokens are to be forbidden.

        Args:
            scores: ``(rows, V)`` logarithms of what is proportional to probabilities.

        Returns:
            ``(rows, V)`` bool.
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


@dataclass
class TopKConfig:
    """Configuration of the logits processor top_k."""

    k: int = option(50, "tokens that are kept", minimum=1)
    keep: int = option(1, "tokens that are kept whatever their probability", minimum=1)


@register_logits_processor("top_k", config=TopKConfig)
class TopK(Cutoff):
    """Keeps the k most probable tokens (Fan et al. 2018), and those as probable as the last of them.

    Args:
        k: how many.
        keep: see ``Cutoff``.
    """

    def __init__(self, k: int, keep: int = 1):
        super().__init__(keep)
        self.k = k

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Cutoff.improbable``."""
        return self._below_best(scores, max(self.k, self.keep))


@dataclass
class TopPConfig:
    """Configuration of the logits processor top_p."""

    p: float = option(0.9, "probability of the tokens that are kept", minimum=0, maximum=1)
    keep: int = option(1, "tokens that are kept whatever their probability", minimum=1)


@register_logits_processor("top_p", config=TopPConfig)
class TopP(Cutoff):
    """Keeps the fewest tokens that together have a probability of p (Holtzman et al. 2020, section 3.1).

    Those as probable as the last of them are kept as well.

    Args:
        p: between 0 and 1.
        keep: see ``Cutoff``.
    """

    def __init__(self, p: float, keep: int = 1):
        super().__init__(keep)
        self.p = p

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Cutoff.improbable``."""
        lprobs = scores.log_softmax(1)
        for count in _counts(scores.size(1)):
            best = lprobs.topk(count, dim=1).values
            # probabilities .4 .3 .2 .1 and p = .6 have the sums .4 .7 .9 1.: one is too small, so that two are needed
            needed = (best.exp().cumsum(1) < self.p).sum(1, keepdim=True).clamp(min=self.keep - 1)
            if bool((needed < count).all()):
                break
        return lprobs < best.gather(1, needed.clamp(max=scores.size(1) - 1))


@dataclass
class MinPConfig:
    """Configuration of the logits processor min_p."""

    p: float = option(0.1, "share of the best token's probability that is enough", minimum=0, maximum=1)
    keep: int = option(1, "tokens that are kept whatever their probability", minimum=1)


@register_logits_processor("min_p", config=MinPConfig)
class MinP(Cutoff):
    """Keeps tokens with at least a share of the best one's probability (Nguyen et al. 2024).

    Args:
        p: the share.
        keep: see ``Cutoff``.
    """

    def __init__(self, p: float, keep: int = 1):
        super().__init__(keep)
        self.p = p

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Cutoff.improbable``."""
        least = scores.amax(1, keepdim=True) + (math.log(self.p) if self.p > 0 else -math.inf)
        return (scores < least) & self._below_best(scores, self.keep)


@dataclass
class TypicalConfig:
    """Configuration of the logits processor typical."""

    mass: float = option(0.9, "mass of the typical tokens that are kept", minimum=1e-6, maximum=1)
    keep: int = option(1, "tokens that are kept whatever their probability", minimum=1)


@register_logits_processor("typical", config=TypicalConfig)
class Typical(Cutoff):
    """Keeps tokens whose surprise is nearest to the expected one (Meister et al. 2023).

    Args:
        mass: the fewest of them that together have this probability are kept.
        keep: see ``Cutoff``; here the most typical ones are kept.
    """

    def __init__(self, mass: float, keep: int = 1):
        super().__init__(keep)
        self.mass = mass

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Cutoff.improbable``."""
        lprobs = scores.log_softmax(1)
        entropy = -(lprobs * lprobs.exp()).nansum(1, keepdim=True)  # 0 * -inf counts as 0
        distance = (-lprobs - entropy).abs()
        for count in _counts(scores.size(1)):
            nearest, order = distance.topk(count, dim=1, largest=False)
            # as in ``TopP``, but from the most typical one on
            needed = (lprobs.gather(1, order).exp().cumsum(1) < self.mass).sum(1, keepdim=True).clamp(min=self.keep - 1)
            if bool((needed < count).all()):
                break
        return distance > nearest.gather(1, needed.clamp(max=scores.size(1) - 1))


@dataclass
class EpsilonConfig:
    """Configuration of the logits processor epsilon."""

    epsilon: float = option(0.001, "probability that is enough", minimum=0, maximum=1)
    keep: int = option(1, "tokens that are kept whatever their probability", minimum=1)


@register_logits_processor("epsilon", config=EpsilonConfig)
class Epsilon(Cutoff):
    """Keeps tokens of at least some probability (Hewitt, Manning and Liang 2022).

    Args:
        epsilon: that probability.
        keep: see ``Cutoff``.
    """

    def __init__(self, epsilon: float, keep: int = 1):
        super().__init__(keep)
        self.epsilon = epsilon

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Cutoff.improbable``."""
        return (scores.softmax(1) < self.epsilon) & self._below_best(scores, self.keep)


@dataclass
class EtaConfig:
    """Configuration of the logits processor eta."""

    epsilon: float = option(0.001, "probability that is enough", minimum=0, maximum=1)
    keep: int = option(1, "tokens that are kept whatever their probability", minimum=1)


@register_logits_processor("eta", config=EtaConfig)
class Eta(Cutoff):
    """``Epsilon``, lowered where the distribution is flat (Hewitt, Manning and Liang 2022).

    The least probability is the smaller of epsilon and ``sqrt(epsilon) * exp(-entropy)``.

    Args:
        epsilon: see above.
        keep: see ``Cutoff``.
    """

    def __init__(self, epsilon: float, keep: int = 1):
        super().__init__(keep)
        self.epsilon = epsilon

    def improbable(self, scores: Tensor) -> Tensor:
        """See ``Cutoff.improbable``."""
        lprobs = scores.log_softmax(1)
        probabilities = lprobs.exp()
        entropy = -(lprobs * probabilities).nansum(1, keepdim=True)
        least = (math.sqrt(self.epsilon) * (-entropy).exp()).clamp(max=self.epsilon)
        return (probabilities < least) & self._below_best(scores, self.keep)


def _counts(vocab: int) -> tuple[int, int]:
    """How many tokens to sort: at first a few, and all where these are not enough."""
    return min(_FEW, vocab), vocab
