"""Minimum Bayes risk with confidence-based pruning (Cheng and Vlachos 2023, "Faster Minimum Bayes Risk Decoding with
Confidence-based Pruning").

The candidates are compared with more and more pseudo-references. After each round, a candidate ``h`` is pruned if it is
unlikely to be as good as the best one ``h*`` so far, over bootstrap samples of the references::

    prune h  if  share of samples with mu(h) >= mu(h*)  is at most  1 - alpha

    seqgen-generate common.user_dir=examples/papers/mbr path=runs/a input=test.en generation.beam=16
        generation.rerank=mbr_pruned reranker.utility=chrf
        'reranker.references={sampling:true,epsilon_cutoff:0.02,beam:64,seed:2}'

The authors enlarge the set of references and keep candidates fixed, as here; they stop at a given number of references,
here at all of them. Expect nearly always the output of exact minimum Bayes risk, with a part of its utilities. Only the
first rank is that of the method: pruned candidates keep the mean at the time of pruning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from seqgen.extend import Matrix, option, register_reranker

from .exact import Mbr, MbrConfig, UtilityMatrix


@dataclass
class PrunedConfig(MbrConfig):
    """Configuration of confidence-based pruning."""

    alpha: float = option(
        0.99, "confidence with which a pruned candidate is worse than the best one", minimum=0, maximum=1
    )
    first: int = option(8, "references of the first round; each further round doubles them", minimum=1)
    samples: int = option(500, "bootstrap samples of each round", minimum=1)
    seed: int = option(1, "seed of the order of the references and of the bootstrap", minimum=0)


@register_reranker("mbr_pruned", config=PrunedConfig)
class PrunedMbr(Mbr):
    """Confidence-based pruning; the arguments after the first two are the fields of ``PrunedConfig``."""

    def __init__(self, *given: Any, alpha: float = 0.99, first: int = 8, samples: int = 500, seed: int = 1):
        super().__init__(*given)
        self.alpha, self.first, self.samples, self.seed = alpha, first, samples, seed

    def expected(self, matrix: UtilityMatrix, line: int) -> Matrix:
        """See ``Mbr.expected``."""
        random = numpy.random.default_rng((self.seed, line))
        order = random.permutation(len(matrix.references))
        means, active = numpy.zeros(len(matrix.candidates)), numpy.arange(len(matrix.candidates))
        count = min(self.first, len(order))
        while True:
            utilities = matrix[active, order[:count]]
            means[active] = utilities.mean(1)
            best = int(means[active].argmax())
            if count == len(order) or len(active) == 1:
                break
            times = random.multinomial(count, numpy.full(count, 1 / count), size=self.samples)  # (samples, count)
            resampled = utilities @ times.T / count  # (active, samples)
            wins = (resampled >= resampled[best] - 1e-9).mean(1)
            active = active[wins > 1 - self.alpha]
            count = min(2 * count, len(order))
        below = numpy.nextafter(means[active[best]], -numpy.inf)
        pruned = numpy.setdiff1d(numpy.arange(len(means)), active)
        means[pruned] = numpy.minimum(means[pruned], below)  # so that none of them is ranked first
        return means
