"""Reranking by quality estimation (Fernandes et al. 2022, "Quality-Aware Decoding for Neural Machine Translation").

Of ``n`` candidates, which beam search or sampling makes, the one is chosen that a quality estimator ``q`` prefers. It
reads the source and the output, and no reference::

    y* = argmax over y of   q(x, y) + weight * log p(y | x)

where ``log p`` is the score of the search. Any Python function is an estimator: add yours to a copy of this file with
``@quality(NAME)``, as ``length_ratio`` below, or with ``@batch_quality(NAME)`` if one call estimates all outputs of a
source, as neural estimators do. In Python: ``translate(texts, rerank=QualityEstimation(function))``. ::

    seqgen-generate common.user_dir=examples/papers/quality_estimation.py path=runs/a input=test.en
        generation.beam=16 generation.rerank=quality reranker.function=length_ratio reranker.weight=1.0

Expect outputs that are better by the estimator and, only as far as it is right, by other metrics. ``length_ratio`` is a
small example that prefers outputs with as many words as the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from seqgen.extend import (
    ConfigError,
    Reranker,
    Resources,
    TextHypothesis,
    Translation,
    nearest,
    option,
    register_reranker,
)

Quality = Callable[[str, str], float]
"""A function of the source and one output; the larger, the better."""

BatchQuality = Callable[[str, Sequence[str]], Sequence[float]]
"""A function of the source and all its outputs; it returns a value for each."""

FUNCTIONS: dict[str, BatchQuality] = {}
"""The registered estimators, by name."""


def batch_quality(name: str) -> Callable[[BatchQuality], BatchQuality]:
    """Register a function of the source and all outputs, with ``@batch_quality(NAME)``."""

    def register(function: BatchQuality) -> BatchQuality:
        FUNCTIONS[name] = function
        return function

    return register


def quality(name: str) -> Callable[[Quality], Quality]:
    """Register a function of the source and one output, with ``@quality(NAME)``."""

    def register(function: Quality) -> Quality:
        FUNCTIONS[name] = lambda source, texts: [function(source, text) for text in texts]
        return function

    return register


@quality("length_ratio")
def length_ratio(source: str, text: str) -> float:
    """Minus the absolute log ratio of the numbers of words: 0 if they are equal."""
    return -abs(math.log((1 + len(text.split())) / (1 + len(source.split()))))


@dataclass
class QualityConfig:
    """Configuration of the reranker; its fields are the keys ``reranker.FIELD``."""

    function: str = option("length_ratio", "name of the quality estimator: length_ratio, or your own")
    weight: float = option(0.0, "weight of the score of the search, in nats", minimum=0)


@register_reranker("quality", config=QualityConfig)
class QualityEstimation(Reranker):
    """Ranks hypotheses by a function of the source and the output.

    Args:
        function: returns a value for each output of a source.
        weight: weight of the score of the search.
    """

    def __init__(self, function: BatchQuality, weight: float = 0.0):
        self.function, self.weight = function, weight

    @classmethod
    def build(cls, cfg: QualityConfig, resources: Resources) -> Self:
        """Find the function.

        Raises:
            ConfigError: no function is registered under this name.
        """
        if cfg.function not in FUNCTIONS:
            known = ", ".join(sorted(FUNCTIONS))
            near = nearest(cfg.function, FUNCTIONS)
            raise ConfigError(f"there is no quality estimator {cfg.function!r}{near}; choose one of: {known}")
        return cls(FUNCTIONS[cfg.function], cfg.weight)

    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> list[float]:
        """See ``Reranker``."""
        values = self.function(translation.member_sources[0], [item.text for item in hypotheses])
        return [
            float(value) + self.weight * item.score if self.weight else float(value)
            for value, item in zip(values, hypotheses, strict=True)
        ]
