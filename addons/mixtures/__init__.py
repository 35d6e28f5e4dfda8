"""Mixtures: text to text with several tasks, and denoising; docs/training.md."""

from seqgen.addons.mixtures.denoising import DenoisingConfig, DenoisingTask

__all__ = ["DenoisingConfig", "DenoisingTask"]
