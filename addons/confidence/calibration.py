"""Calibration: from features of a translation to the probability that it is good enough, and which lines to read.

The features are mapped to a probability by logistic regression on a part of the lines that have references. The other
lines, which are held out, determine the threshold of the probability at and below which a person must read a line, by
conformal risk control (Angelopoulos et al. 2024).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from torch import nn

from seqgen.addons.confidence.options import ConfidenceOptions
from seqgen.config import DEFAULTS, FILES, INPUT, SPEED, GenerationConfig, from_dict, keys_tagged, option
from seqgen.extend import (
    ConfigError,
    DataError,
    Matrix,
    Translation,
    Utility,
    UtilityLine,
    compare_texts,
    digest,
    listing,
    parse_json,
    read_bytes,
    reading_errors,
    to_dict,
    unique_keys,
    write_atomically,
)

FORMAT = "seqgen calibration 1"
KEEPS_BEST = ("nbest", "observers")
"""Keys of decoding that change neither the best output of a sentence nor its features."""
FEWEST = 20
"""Minimum number of lines from which a calibration is fitted."""
SAMPLES = 64
"""Minimum number of values of a large weight that the fingerprint hashes; at most twice as many."""
ROUNDING = 1e-9
"""A product of a risk and a number of lines is rounded up to a whole number that differs by less than this."""
CONSTANT = 1e-9
"""A feature whose standard deviation, relative to its values, is smaller than this is constant except for rounding."""
SMALLEST = 1e-200
"""The smallest standard deviation: with features of at most ``LARGEST_FLOAT``, all logits are then finite."""


@dataclass(frozen=True)
class Calibration:
    """The map from features to a probability, what it was made with, and the held-out lines.

    With ``F`` features ``x``, the probability is ``sigmoid(bias + sum_f weights_f * (x_f - centers_f) / scales_f)``.
    """

    format: str = option(FORMAT, "kind and version of the file", choices=(FORMAT,))
    model: str = option("", "fingerprint of the models")
    settings: dict[str, Any] = option({}, "the decoding settings that are not the defaults")
    metric: str = option("", "name of the utility that measures the quality")
    quality: float = option(0.0, "the quality from which an output is good enough")
    features: list[str] = option([], "names of the features")
    centers: list[float] = option([], "mean of each feature")
    scales: list[float] = option([], "standard deviation of each feature", minimum=SMALLEST)
    weights: list[float] = option([], "weight of each feature")
    bias: float = option(0.0, "bias of the logistic regression")
    good: list[float] = option([], "probabilities of the held-out lines that are good enough", minimum=0, maximum=1)
    bad: list[float] = option([], "probabilities of those that are not", minimum=0, maximum=1)

    @property
    def lines(self) -> int:
        """The number of held-out lines."""
        return len(self.good) + len(self.bad)

    def probabilities(self, values: Matrix) -> Matrix:
        """The probability that each output is good enough.

        Args:
            values: ``(N, F)`` features, see ``feature_values``.

        Returns:
            ``(N,)``.
        """
        scaled = (values - numpy.array(self.centers)) / numpy.array(self.scales)
        logits = self.bias + scaled @ numpy.array(self.weights)
        found: Matrix = (1 + numpy.tanh(logits / 2)) / 2  # the sigmoid, without overflow
        return found

    def share_threshold(self, share: float) -> float:
        """The probability at and below which this share of the held-out lines is.

        Args:
            share: the share, above 0; with 1, every line is at or below.

        Raises:
            ConfigError: it is less than one held-out line.
        """
        count = math.floor(share * self.lines + ROUNDING)
        if not count:
            raise ConfigError(
                f"a share of {share:g} is less than one of {self.lines} held-out lines; give a larger share"
            )
        return 1.0 if share == 1 else sorted([*self.good, *self.bad])[count - 1]

    def risk_threshold(self, risk: float) -> float:
        """The probability at and below which a person must read a line, so that the risk of the others is kept.

        If new lines are drawn like the held-out ones, a new line is with probability ``risk`` at most both above the
        threshold and not good enough. The probability is over the held-out lines and the new line together.

        Args:
            risk: the risk that is promised, above 0 and below 1.

        Returns:
            The threshold; -1 if no line need be read.

        Raises:
            ConfigError: there are too few held-out lines for this promise.
        """
        # With k bad lines above the threshold, (k + 1) / (lines + 1) bounds the risk: the new line may be a bad one.
        allowed = math.floor(risk * (self.lines + 1) + ROUNDING) - 1
        if allowed < 0:
            needed = math.ceil(1 / risk - ROUNDING) - 1
            raise ConfigError(
                f"with {self.lines} held-out lines a risk of {risk:g} cannot be guaranteed; at least {needed} "
                "are needed"
            )
        worst_first = sorted(self.bad, reverse=True)
        return worst_first[allowed] if allowed < len(worst_first) else -1.0

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        """Refuse other models and settings than those of the calibration.

        Args:
            model: fingerprint of the models.
            settings: see ``calibrated_settings``.

        Raises:
            ConfigError: they differ.
        """
        if keys := sorted(key for key in {*settings, *self.settings} if settings.get(key) != self.settings.get(key)):
            raise ConfigError(
                f"the calibration was made with other values of {listing([f'generation.{key}' for key in keys])}; make "
                "one with these settings"
            )
        if model != self.model:
            raise ConfigError("the calibration was made with another model; make one with this model")

    def save(self, path: Path) -> None:
        """Write a JSON file."""
        write_atomically(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read what ``save`` has written.

        Raises:
            DataError: the file cannot be read, or is no calibration.
        """
        try:
            with reading_errors(path, DataError):
                content = parse_json(read_bytes(path), object_pairs_hook=unique_keys)
            keys = {each.name for each in dataclasses.fields(cls)}
            if not isinstance(content, dict) or keys - {*content}:
                raise ValueError("some of its keys are missing")
            found = from_dict(cls, content, "its values")
            sizes = {len(one) for one in (found.features, found.centers, found.scales, found.weights)}
            if len(sizes) > 1 or not found.features or not found.lines:
                raise ValueError("its values contradict each other")
        except (ValueError, ConfigError) as error:
            raise DataError(f"{path} is not a calibration, or is damaged: {error}; make it again") from None
        return found


@dataclass(frozen=True)
class Measured:
    """Lines that have an output and a reference.

    Attributes:
        translations: ``N`` lines; empty ones are left out.
        qualities: ``(N,)`` the utility of each output against its reference.
        unrelated: ``(N, 2)`` the utility of each source against the reference of its line, and of each output against
            the reference of another line.
    """

    translations: list[Translation]
    qualities: Matrix
    unrelated: Matrix


def measure_quality(translations: Iterable[Translation], references: Iterable[str], utility: Utility) -> Measured:
    """Measure the quality of outputs.

    Args:
        translations: the lines.
        references: the reference of each.
        utility: compares an output with its reference.
    """
    pairs = [pair for pair in zip(translations, references, strict=True) if pair[0].num_tokens]
    lines = [
        UtilityLine(one.member_sources[0], [one.hypotheses[0].text, one.source], [reference, pairs[row - 1][1]])
        for row, (one, reference) in enumerate(pairs)
    ]
    found = numpy.array(compare_texts(utility, lines)).reshape(-1, 4)
    # of the output, of the output with another line's, of the source
    return Measured([one for one, _ in pairs], found[:, 0], found[:, [2, 1]])


def split_into_halves(count: int) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """The lines on which the map is fitted, and the held-out ones: random halves, the same for each call."""
    order = numpy.random.default_rng(1).permutation(count)
    return order[: count // 2], order[count // 2 :]


def fit_calibration(values: Matrix, qualities: Matrix, quality: float | None = None, **facts: Any) -> Calibration:
    """Fit the map on half of the lines, and hold the others out.

    Args:
        values: ``(N, F)`` features.
        qualities: ``(N,)`` the quality of each output.
        quality: the quality from which an output is good enough; ``None`` for a quality above the lower quartile of
            the first half, or for the quartile if no line is above it.
        facts: ``model``, ``settings``, ``metric`` and ``features`` of the result.

    Raises:
        DataError: there are too few lines, or all outputs of the first half are good enough, or none is.
    """
    from sklearn.linear_model import LogisticRegression  # slow to import

    if len(values) < FEWEST:
        raise DataError(f"a calibration needs {FEWEST} lines with an output, but there are {len(values)}; give more")
    fit, held_out = split_into_halves(len(values))
    least = float(numpy.quantile(qualities[fit], 0.25)) if quality is None else quality
    if quality is None and (qualities[fit] > least).any():
        least = float(numpy.nextafter(least, math.inf))
    good = qualities >= least
    if (count := int(good[fit].sum())) in (0, len(fit)):
        raise DataError(
            f"{count} of {len(fit)} outputs reach the quality {least:g}, but both good and bad ones are needed; change "
            "the quality, or give more lines"
        )
    spread = values[fit].std(0)
    varies = spread > numpy.maximum(CONSTANT * numpy.abs(values[fit]).max(0), SMALLEST)
    centers, scales = values[fit].mean(0), numpy.where(varies, spread, 1.0)
    model = LogisticRegression(max_iter=1000).fit((values[fit] - centers) / scales, good[fit])
    vectors = {"centers": centers, "scales": scales, "weights": model.coef_[0] * varies}
    lists = {name: vector.tolist() for name, vector in vectors.items()}
    found = Calibration(bias=float(model.intercept_[0]), quality=least, **lists, **facts)
    probabilities = found.probabilities(values)
    reached, missed = (sorted(probabilities[held_out[side]].tolist()) for side in (good[held_out], ~good[held_out]))
    return dataclasses.replace(found, good=reached, bad=missed)


def calibrated_settings(cfg: GenerationConfig) -> dict[str, Any]:
    """The decoding settings on which a calibration depends, where they are not the defaults; of files, the checksum."""
    own = [each.name for each in dataclasses.fields(ConfidenceOptions)]
    left_out = {*own, *KEEPS_BEST, *keys_tagged(SPEED), *keys_tagged(INPUT)}
    chosen = {key: value for key, value in to_dict(cfg).items() if value != DEFAULTS[key] and key not in left_out}
    for key in keys_tagged(FILES):
        if key in chosen and Path(chosen[key]).is_file():
            chosen[key] = digest([Path(chosen[key])])
    return chosen


def weights_fingerprint(models: Sequence[nn.Module]) -> str:
    """A checksum of the names, shapes and some numbers of all weights: it costs little also for large models."""
    total = hashlib.sha256()
    for name, weight in (pair for model in models for pair in model.named_parameters()):
        some = weight.detach().flatten()[:: max(1, weight.numel() // SAMPLES)]
        total.update(f"{name} {tuple(weight.shape)} {some.double().tolist()}".encode())
    return total.hexdigest()
