"""TODO"""

if __name__ != "seqgen.models":
    raise ImportError(f"import this package as 'seqgen.models', not as {__name__!r}, or its components register twice")
