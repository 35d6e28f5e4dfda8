"""Speculative decoding: drafters, and the verification of drafted tokens."""
