"""Speculative decoding: drafters, and the verification of what they draft."""
