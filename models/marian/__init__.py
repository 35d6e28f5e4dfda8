"""Models in Marian's own format: reading them, and the transformer with a recurrent decoder."""
