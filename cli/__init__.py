"""The commands: each parses, builds, loops and prints."""

if __name__ != "seqgen.cli":
    raise ImportError(f"import this package as 'seqgen.cli', not as {__name__!r}, or its components register twice")

from seqgen.cli.threads import wait_passively_if_busy  # needs the right package name

wait_passively_if_busy()
