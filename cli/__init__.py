"""The commands: each parses, builds, loops and prints."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import MutableMapping
from types import FrameType

if __name__ != "seqgen.cli":
    raise ImportError(f"import this package as 'seqgen.cli', not as {__name__!r}, or its components register twice")

BUSY = 0.25
"""Load of each core above which the machine counts as busy."""


def wait_passively_if_busy(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads sleep if other processes use the machine.

    By default, a thread that waits for another one keeps its core busy (it spins). If there are fewer free cores than
    threads, it then spins in place of the thread that it waits for. With two threads on two cores that others used,
    decoding with a small transformer made 11 to 26 tokens/s, and 560 to 660 with ``OMP_WAIT_POLICY=PASSIVE``.

    Args:
        environment: the environment variables; a policy that the user has set is kept.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}.isdisjoint(environment):
        return
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY * (os.cpu_count() or 1):
        environment["OMP_WAIT_POLICY"] = "PASSIVE"


def end_now(number: int, frame: FrameType | None) -> None:
    """End the process by Ctrl-C before its work begins: imports and libraries can lose a ``KeyboardInterrupt``."""
    os.write(2, f"{os.path.basename(sys.argv[0])}: interrupted\n".encode())
    os._exit(128 + number)


_is_module = sys.argv[0] == "-m" and any("seqgen.cli." in word for word in sys.orig_argv)
if _is_module or os.path.basename(sys.argv[0]).startswith("seqgen-"):  # a user's process keeps its settings
    wait_passively_if_busy()  # decided before PyTorch is imported
    gc.disable()  # importing makes many objects and no garbage; ``run`` switches garbage collection on
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored, as under ``nohup``
        signal.signal(signal.SIGINT, end_now)  # until ``run`` begins the work
