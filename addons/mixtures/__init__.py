"""Mixtures: text to text with several tasks, and denoising; docs/training.md."""
