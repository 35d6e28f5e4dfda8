"""Minimum Bayes risk from a low-rank matrix (Trabelsi, Vilar, Finkelstein and Freitag 2024, "Efficient Minimum Bayes
Risk Decoding using Low-Rank Matrix Completion Algorithms").

A random share of the utilities ``U`` of candidates and pseudo-references is computed. The matrix has nearly a low rank,
so that alternating least squares predicts the others::

    min over X, Y of   sum over computed i,j of (U_ij - X_i . Y_j)^2  +  penalty * (|X|^2 + |Y|^2)
    mu = row means of X Y'

    seqgen-generate common.user_dir=examples/papers/mbr path=runs/a input=test.en generation.beam=64
        generation.sampling=true generation.epsilon_cutoff=0.02 generation.rerank=mbr_low_rank reranker.reduction=4

Utilities are scaled to a mean square of 1 first, so that ``penalty`` means the same for all of them. Expect slightly
lower quality than that of exact minimum Bayes risk, and much lower if a row of the matrix has few computed utilities:
the method is for many candidates and references, and for utilities that take long, such as neural ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from seqgen.extend import Matrix, option, register_reranker

from .exact import Mbr, MbrConfig, UtilityMatrix


@dataclass
class LowRankConfig(MbrConfig):
    """Configuration of the low-rank completion."""

    reduction: float = option(4.0, "compute one of this many utilities", minimum=1)
    rank: int = option(8, "rank of the completed matrix", minimum=1)
    penalty: float = option(1.0, "weight of the squared factors, for utilities scaled to a mean square of 1", minimum=0)
    iterations: int = option(10, "steps of alternating least squares", minimum=1)
    seed: int = option(1, "seed of the choice of utilities and of the first factors", minimum=0)


@register_reranker("mbr_low_rank", config=LowRankConfig)
class LowRankMbr(Mbr):
    """Low-rank completion; the arguments after the first two are the fields of ``LowRankConfig``."""

    def __init__(
        self,
        *given: Any,
        reduction: float = 4.0,
        rank: int = 8,
        penalty: float = 1.0,
        iterations: int = 10,
        seed: int = 1,
    ):
        super().__init__(*given)
        self.reduction, self.rank, self.penalty, self.iterations, self.seed = reduction, rank, penalty, iterations, seed

    def expected(self, matrix: UtilityMatrix, line: int) -> Matrix:
        """See ``Mbr.expected``."""
        random = numpy.random.default_rng((self.seed, line))
        shape = len(matrix.candidates), len(matrix.references)
        chosen = random.permutation(math.prod(shape))[: math.ceil(math.prod(shape) / self.reduction)]
        utilities = numpy.full(shape, numpy.nan)
        utilities.flat[chosen] = 0
        for column in range(shape[1]):
            if len(rows := numpy.flatnonzero(~numpy.isnan(utilities[:, column]))):
                utilities[rows, column] = matrix[rows, [column]][:, 0]
        expected: Matrix = complete(utilities, self.rank, self.penalty, self.iterations, random).mean(1)
        return expected


def complete(utilities: Matrix, rank: int, penalty: float, iterations: int, random: numpy.random.Generator) -> Matrix:
    """Complete a matrix by alternating least squares.

    Args:
        utilities: ``(N, M)``; NaN where unknown.
        rank: columns of the two factors.
        penalty: weight of the squared factors.
        iterations: how often both factors are computed.
        random: draws the first factors.

    Returns:
        ``(N, M)`` the product of the factors, of all entries.
    """
    known = ~numpy.isnan(utilities)
    scale = math.sqrt((utilities[known] ** 2).mean()) or 1.0
    values = numpy.where(known, utilities, 0) / scale
    right = random.normal(size=(utilities.shape[1], rank))
    for _ in range(iterations):
        left = _ridge(values, known, right, penalty)
        right = _ridge(values.T, known.T, left, penalty)
    return scale * left @ right.T


def _ridge(values: Matrix, known: NDArray[numpy.bool_], factors: Matrix, penalty: float) -> Matrix:
    """For each row the factor that minimizes the squared error of its known values: ``(rows, rank)``."""
    squares = numpy.einsum("nm,mr,ms->nrs", known.astype(float), factors, factors, optimize=True)
    ridge = max(penalty, 1e-12) * numpy.eye(factors.shape[1])
    return numpy.linalg.solve(squares + ridge, (values @ factors)[:, :, None])[:, :, 0]
