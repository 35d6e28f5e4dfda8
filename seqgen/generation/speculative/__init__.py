"""Speculative decoding: drafters, and the verification of drafted tokens."""

from seqgen.renamed import former_names

globals()["__getattr__"] = former_names(__name__)  # a function would hide misspelt names from type checkers
