"""Mixtures: text to text with several tasks, and denoising; docs/training.md."""

from seqgen.addons.mixtures.denoising import DenoisingConfig, DenoisingTask
from seqgen.addons.mixtures.noising import (
    NoiseTokens,
    Objective,
    SpanCorruption,
    replace_spans,
    span_counts,
    span_mask,
)
from seqgen.addons.mixtures.noisy_text import NoisyTextDataset

__all__ = ["DenoisingConfig", "DenoisingTask", "NoiseTokens", "NoisyTextDataset", "Objective", "SpanCorruption"]
__all__ += ["replace_spans", "span_counts", "span_mask"]
