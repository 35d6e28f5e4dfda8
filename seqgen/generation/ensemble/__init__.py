"""Members of an ensemble, and the combinations of their scores."""
