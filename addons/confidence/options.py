"""The keys of confidence."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config import CALL, FILES, KEEPS_SCORES, NOT_IN_TRAINING, Requirement, decoding_key

_HAS_CONFIDENCE = Requirement(lambda cfg: cfg.confidence, "has no effect without generation.confidence=FILE; set both")


@dataclass
class ConfidenceOptions:
    """How sure an output is, and which lines a person should review."""

    quality_features: list[str] = decoding_key(
        [],
        "names of features of the best hypothesis that predict its quality, such as mean_lprob",
        CALL | KEEPS_SCORES | NOT_IN_TRAINING,
        other_names=("features",),
    )
    confidence: str = decoding_key(
        "",
        "calibration (made by seqgen-calibrate) that gives each output the probability of being good enough",
        FILES | KEEPS_SCORES | NOT_IN_TRAINING,
        role="input_path",
    )
    review_share: float = decoding_key(
        0.0,
        "with confidence: share of the lines to mark for review, such as 0.1; exact for the lines with which "
        "the calibration was made",
        CALL | KEEPS_SCORES | NOT_IN_TRAINING,
        _HAS_CONFIDENCE,
        minimum=0,
        maximum=1,
    )
    review_risk: float = decoding_key(
        1.0,
        "with confidence: mark enough lines for review that at most this share of lines is bad and unmarked, such as "
        "0.05; 1 for no mark",
        CALL | KEEPS_SCORES | NOT_IN_TRAINING,
        _HAS_CONFIDENCE,
        Requirement(
            lambda cfg: not cfg.review_share, "and generation.review_share both mark lines; remove one of them"
        ),
        minimum=1e-6,
        maximum=1,
    )
