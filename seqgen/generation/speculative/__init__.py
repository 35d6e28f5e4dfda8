"""Speculative decoding: drafters, and the verification of drafted tokens."""

from seqgen.renamed import former_names

globals()["__getattr__"] = former_names(__name__)  # not a function, so that type checkers still know each name
