"""Search strategies: which candidates continue which beams."""

from seqgen.renamed import former_names

globals()["__getattr__"] = former_names(__name__)  # a function would hide misspelt names from type checkers
