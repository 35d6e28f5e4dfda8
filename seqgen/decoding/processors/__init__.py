"""Logits processors: changes of the next-token scores."""
