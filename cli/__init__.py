"""The commands: each parses, builds, loops and prints."""

import gc

if __name__ != "seqgen.cli":
    raise ImportError(f"import this package as 'seqgen.cli', not as {__name__!r}, or its components register twice")

from seqgen.cli.threads import wait_passively_if_busy  # needs the right package name

wait_passively_if_busy()

# Imported objects live as long as the process: searching them for garbage takes a seventh of a command's start-up.
if gc.isenabled():
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()
