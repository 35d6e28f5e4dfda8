"""The line stage of ``generation.quality_features`` and ``generation.confidence``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy

from seqgen.addons.confidence.calibration import Calibration, calibrated_settings, weights_fingerprint
from seqgen.addons.confidence.features import Feature, feature_values
from seqgen.config import GenerateConfig, GenerationConfig
from seqgen.extend import (
    DECODING_COMPONENTS,
    ConfigError,
    InputLine,
    LineOrder,
    LineStage,
    Resources,
    TextModel,
    Translation,
    build_component,
    register_line_stage,
)


@register_line_stage("confidence")
class ConfidenceStage(LineStage):
    """Adds to each translation its features, the probability that it is good enough, and the mark for a person.

    The extra ``features`` has the values of ``generation.quality_features``, and of the features of a calibration; it
    is empty for an empty line. ``confidence`` is the probability that the output is good enough, and ``review`` says
    whether a person should read the line; they are ``None`` for an empty line, and without a calibration or a wish for
    marks. Of several sentences, ``confidence`` is that of the least certain one, and ``review`` says whether one should
    be read.

    Args:
        cfg: the decoding settings; they name features, a calibration or both.
        models: the models that decode.
        resources: what features may use.

    Raises:
        DataError: the calibration cannot be read.
        ConfigError: it belongs to other models or settings, or the risk cannot be guaranteed.
    """

    order = LineOrder.HYPOTHESES
    written: ClassVar[Mapping[str, tuple[str, str] | None]] = {
        "confidence": ("no probabilities", "format=json or format=tsv"),
        "quality_features": ("no features", "format=json"),
        "top_tokens": None,
    }

    def __init__(self, cfg: GenerationConfig, models: Sequence[TextModel], resources: Resources):
        self.calibration, self.threshold = Calibration(), -1.0
        if cfg.confidence:
            self.calibration = Calibration.load(Path(cfg.confidence))
            try:
                fingerprint = weights_fingerprint([each.model for each in models])
                self.calibration.check(fingerprint, calibrated_settings(cfg))
                if cfg.review_share:
                    self.threshold = self.calibration.share_threshold(cfg.review_share)
                elif cfg.review_risk < 1:
                    self.threshold = self.calibration.risk_threshold(cfg.review_risk)
            except ConfigError as error:
                raise ConfigError(f"generation.confidence={cfg.confidence}: {error}") from None
        self.marks = cfg.review_share > 0 or cfg.review_risk < 1
        names = dict.fromkeys([*cfg.quality_features, *self.calibration.features])
        features, _ = DECODING_COMPONENTS["feature"]
        self.features: dict[str, Feature] = {
            name: build_component(features, name, Feature, cfg, resources) for name in names
        }

    @classmethod
    def check(cls, cfg: GenerateConfig) -> None:
        """Refuse to stream outputs, which are rated when they are complete; see ``LineStage``."""
        if cfg.stream and cfg.generation.confidence:
            raise ConfigError("stream=true writes no probabilities (generation.confidence); remove one of them")

    @classmethod
    def build(cls, cfg: GenerationConfig, resources: Resources) -> ConfidenceStage | None:
        """See ``LineStage``."""
        return cls(cfg, resources.models, resources) if cfg.quality_features or cfg.confidence else None

    def write(self, line: InputLine, translation: Translation) -> Translation:
        """Rate a translation, which has all hypotheses; see ``LineStage``."""
        values: dict[str, float] = {}
        confidence = review = None
        if translation.hypotheses:
            values = feature_values(self.features, translation)
            if names := self.calibration.features:
                row = numpy.array([values[name] for name in names])
                confidence = float(self.calibration.probabilities(row))
                review = confidence <= self.threshold if self.marks else None
        elif line.sources and self.calibration.features:  # no output is not good enough
            confidence, review = 0.0, True if self.marks else None
        return _rated(translation, values, confidence, review)

    def joined(self, whole: Translation, parts: Sequence[Translation]) -> Translation:
        """Rate a line by its least certain sentence; see ``LineStage``."""
        confidences = [part.confidence for part in parts if part.confidence is not None]
        marks = [part.review for part in parts if part.review is not None]
        return _rated(whole, {}, min(confidences, default=None), any(marks) if marks else None)

    def record(self, translation: Translation) -> Mapping[str, Any]:
        """Describe what is known in JSON; see ``LineStage``."""
        found = {name: translation.extras.get(name) for name in ("features", "confidence", "review")}
        return {name: value for name, value in found.items() if value is not None and value != {}}

    @classmethod
    def columns(cls, translation: Translation) -> Mapping[str, str]:
        """Write the probability and the mark in tables; see ``LineStage``."""
        confidence = translation.extras.get("confidence")
        written = "" if confidence is None else f"{confidence:.4f}"
        return {"confidence": written, "review": "review" if translation.extras.get("review") else ""}

    def counts(self, translation: Translation) -> Mapping[str, int]:
        """Count the lines, and those that a person should read; see ``LineStage``."""
        return {"lines": 1, "marked": int(translation.review or 0)} if self.marks else {}

    @classmethod
    def summary(cls, sums: Mapping[str, int]) -> str:
        """Say how many lines are marked; see ``LineStage``."""
        return f"{sums['marked']} of {sums['lines']} lines are marked for review" if sums["lines"] else ""


def _rated(
    translation: Translation, features: Mapping[str, float], confidence: float | None, review: bool | None
) -> Translation:
    found = {"features": features, "confidence": confidence, "review": review}
    for name, value in found.items():
        translation = translation.with_extra(name, value)
    return translation
