"""Contrastive search; docs/decoding.md."""
