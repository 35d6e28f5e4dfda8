"""Weights and run folders: reading, writing, averaging. Training uses this package; it does not use training."""
