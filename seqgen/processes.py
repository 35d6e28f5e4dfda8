"""Child processes that end when their parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
"""Linux: the ``prctl(2)`` option that sets the signal sent to a process when its parent dies."""


def end_with(parent: int) -> None:
    """End this process as soon as its parent has ended, even if the parent was killed.

    A thread polls for the parent. On Linux, the kernel also kills this process, which works even if the process hangs.

    Args:
        parent: process ID of the parent, which may have ended already.
    """
    if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
