"""Marian: its models, their binary format, and its beam search; docs/models.md."""
