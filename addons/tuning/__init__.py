"""Tuning: finds weights and settings of decoding on a validation text; docs/decoding.md."""
