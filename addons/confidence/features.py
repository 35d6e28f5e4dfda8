"""Features of a translation that go with its quality; no reference and no further pass of a model is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from seqgen.config import LARGEST_FLOAT
from seqgen.extend import (
    Chrf,
    Component,
    ConfigError,
    Resources,
    TextHypothesis,
    Translation,
    UtilityLine,
    contract_error,
    register_feature,
    shown,
)

LEAST = -50.0
"""The log-probability that replaces smaller ones: a forced prefix can have tokens that the model rules out."""


class Feature(Component):
    """A number that goes with the quality of the best hypothesis of a line; a subclass implements ``__call__``.

    A class that is registered with ``@register_feature`` can be chosen by name (``generation.quality_features``). It
    receives all hypotheses of the search, of which ``nbest`` are returned.
    """

    def __call__(self, translation: Translation) -> float:
        """Compute the feature.

        Args:
            translation: a line with at least one hypothesis.

        Returns:
            A number in any unit, of at most ``LARGEST_FLOAT``.
        """
        raise NotImplementedError


def feature_values(features: Mapping[str, Feature], translation: Translation) -> dict[str, float]:
    """Compute features, and check what they return.

    Args:
        features: features by name.
        translation: a line with at least one hypothesis.

    Returns:
        The value of each.

    Raises:
        DecodingError: a feature returns no finite number, or one above ``LARGEST_FLOAT``.
    """
    values = {name: feature(translation) for name, feature in features.items()}
    for name, value in values.items():
        if not isinstance(value, int | float) or not abs(value) <= LARGEST_FLOAT:
            message = f"must return a number of at most {LARGEST_FLOAT:g} but returns {shown(value)}"
            raise contract_error(features[name], "__call__", message)
    return values


def _lprobs(item: TextHypothesis) -> Tensor:
    """``(T,)`` float64 log-probabilities of the tokens, in nats."""
    return item.positional_scores.double().clamp(min=LEAST)


@register_feature("mean_lprob")
class MeanLprob(Feature):
    """The mean log-probability of the tokens, in nats."""

    def __call__(self, translation: Translation) -> float:
        """See ``Feature``."""
        return float(_lprobs(translation.hypotheses[0]).mean())


@register_feature("min_lprob")
class MinLprob(Feature):
    """The smallest log-probability of a token, in nats."""

    def __call__(self, translation: Translation) -> float:
        """See ``Feature``."""
        return float(_lprobs(translation.hypotheses[0]).min())


@register_feature("sum_lprob")
class SumLprob(Feature):
    """The log-probability of the output, in nats."""

    def __call__(self, translation: Translation) -> float:
        """See ``Feature``."""
        return float(_lprobs(translation.hypotheses[0]).sum())


@register_feature("nbest_entropy")
class NbestEntropy(Feature):
    """The entropy, in nats, of the n-best list, whose probabilities are renormalized; 0 for one hypothesis."""

    def __call__(self, translation: Translation) -> float:
        """See ``Feature``."""
        sums = torch.stack([_lprobs(item).sum() for item in translation.hypotheses])
        lprobs = sums.log_softmax(0)
        return float(-(lprobs.exp() * lprobs).sum())


@register_feature("nbest_similarity")
class NbestSimilarity(Feature):
    """The mean chrF of the output against the other hypotheses, from 0 to 100; 100 for one hypothesis."""

    def __init__(self) -> None:
        self.chrf = Chrf()

    def __call__(self, translation: Translation) -> float:
        """See ``Feature``."""
        best, *others = (item.text for item in translation.hypotheses)
        return float(self.chrf(UtilityLine("", [best], others)).mean()) if others else 100.0


@register_feature("source_length")
class SourceLength(Feature):
    """The logarithm of the number of source tokens."""

    def __call__(self, translation: Translation) -> float:
        """See ``Feature``."""
        return math.log(len(translation.source_tokens))


@register_feature("length_ratio")
class LengthRatio(Feature):
    """The logarithm of the output's number of tokens divided by the source's."""

    def __call__(self, translation: Translation) -> float:
        """See ``Feature``."""
        return math.log(translation.num_tokens / len(translation.source_tokens))


@register_feature("unknown_tokens")
class UnknownTokens(Feature):
    """The share of the output's tokens that are the unknown token.

    Args:
        unk: id of the unknown token.
    """

    def __init__(self, unk: int):
        self.unk = unk

    @classmethod
    def build(cls, cfg: object, resources: Resources) -> UnknownTokens:
        """See ``Component.build``."""
        return cls(resources.dictionary.unk())

    def __call__(self, translation: Translation) -> float:
        """See ``Feature``."""
        return float((translation.hypotheses[0].tokens == self.unk).double().mean())


@register_feature("copied_words")
class CopiedWords(Feature):
    """The share of the output's words that occur in the source; 0 for an output without words."""

    def __call__(self, translation: Translation) -> float:
        """See ``Feature``."""
        words, source = translation.text.split(), {*translation.source.split()}
        return sum(word in source for word in words) / max(1, len(words))


@register_feature("boosted_lprob")
class BoostedLprob(Feature):
    """The mean logarithm of BoostedProb (Dinh and Niehues 2025), in nats; it needs ``generation.top_tokens``.

    The boosted probability of a token is the total probability of the dominant tokens if the token is one of them, else
    its own probability. The dominant tokens are those before the last drop in the sorted probabilities that is at least
    0.005 and at least 30% of the larger one. Drops after the listed tokens are not seen.
    """

    def __call__(self, translation: Translation) -> float:
        """See ``Feature``.

        Raises:
            ConfigError: the top tokens are not known, or there is only one for each output token.
        """
        item = translation.hypotheses[0]
        tokens, scores = item.top_tokens, item.top_scores
        if tokens is None or scores is None or tokens.size(1) < 2:
            raise ConfigError("the feature boosted_lprob needs generation.top_tokens=2 or more, such as 20; set it")
        top = scores.double().exp()
        drops = top[:, :-1] - top[:, 1:] >= (0.3 * top[:, :-1]).clamp(min=0.005)
        # a token is dominant if there is a drop at its place or after it: [0, 1, 0] becomes [1, 1, 0]
        dominant = drops.flip(1).cumsum(1).flip(1) > 0
        mass = (top[:, :-1] * dominant).sum(1)
        boosted = ((tokens[:, :-1] == item.tokens.unsqueeze(1)) & dominant).any(1)
        lprobs = torch.where(boosted, mass.log(), _lprobs(item))
        return float(lprobs.mean())
