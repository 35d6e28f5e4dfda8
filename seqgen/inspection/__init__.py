"""Inspection of decodes: the candidates of every step, the first difference between two decodes, and its cause."""
