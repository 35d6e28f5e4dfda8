"""Outputs whose bits do not depend on the batch (``generation.bit_exact``); docs/fast-decoding.md."""
