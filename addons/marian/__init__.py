"""Marian: its models, their binary format, SSRU, and its beam search; docs/models.md."""
