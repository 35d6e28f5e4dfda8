"""Checkpoints of fairseq: their options, languages and weights."""
