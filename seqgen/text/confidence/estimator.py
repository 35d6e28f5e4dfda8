"""Adds to each translation its features, the probability that it is good enough, and the mark for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy
from torch import nn

from seqgen.config import GenerationConfig
from seqgen.core.errors import ConfigError
from seqgen.decoding.building import Resources, build
from seqgen.registry import FEATURES
from seqgen.text.confidence.calibration import Calibration, calibrated_settings, weights_fingerprint
from seqgen.text.confidence.features import Feature, feature_values
from seqgen.text.results import TextHypothesis, Translation


class ConfidenceEstimator:
    """Rates translations.

    Args:
        cfg: the decoding settings; they name features, a calibration or both.
        models: the models that decode.
        resources: what features may use.

    Raises:
        DataError: the calibration cannot be read.
        ConfigError: it belongs to other models or settings, or the risk cannot be guaranteed.
    """

    def __init__(self, cfg: GenerationConfig, models: Sequence[nn.Module], resources: Resources):
        self.calibration, self.threshold = Calibration(), -1.0
        if cfg.confidence:
            self.calibration = Calibration.load(Path(cfg.confidence))
            try:
                self.calibration.check(weights_fingerprint(models), calibrated_settings(cfg))
                if cfg.review_share:
                    self.threshold = self.calibration.share_threshold(cfg.review_share)
                elif cfg.review_risk < 1:
                    self.threshold = self.calibration.risk_threshold(cfg.review_risk)
            except ConfigError as error:
                raise ConfigError(f"generation.confidence={cfg.confidence}: {error}") from None
        self.marks = cfg.review_share > 0 or cfg.review_risk < 1
        names = dict.fromkeys([*cfg.quality_features, *self.calibration.features])
        self.features: dict[str, Feature] = {name: build(FEATURES, name, Feature, cfg, resources) for name in names}

    def rated(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> Translation:
        """The translation with its features, probability and mark.

        Args:
            translation: a line.
            hypotheses: all its hypotheses, best first, also those that are not returned.
        """
        if not hypotheses:  # of a line that is not empty: no output is not good enough
            empty = replace(translation, confidence=0.0, review=True if self.marks else None)
            return empty if self.calibration.features else translation
        values = feature_values(self.features, replace(translation, hypotheses=list(hypotheses)))
        found = replace(translation, features=values)
        if not self.calibration.features:
            return found
        row = numpy.array([values[name] for name in self.calibration.features])
        confidence = float(self.calibration.probabilities(row))
        return replace(found, confidence=confidence, review=confidence <= self.threshold if self.marks else None)
