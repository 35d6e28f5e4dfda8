"""TODO"""

if __name__ != "seqgen.tasks":
    raise ImportError(f"import this package as 'seqgen.tasks', not as {__name__!r}, or its components register twice")
