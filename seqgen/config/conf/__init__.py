"""The defaults of the two root configurations; the keys are declared in ``seqgen.config``."""
