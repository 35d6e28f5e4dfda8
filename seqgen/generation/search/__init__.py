"""Search strategies: which candidates continue which beams."""

from seqgen.renamed import former_names

globals()["__getattr__"] = former_names(__name__)  # not a function, so that type checkers still know each name
