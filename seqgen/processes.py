"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
"""What Linux calls the signal that a process gets when its parent dies (``prctl(2)``)."""


def end_with(parent: int) -> None:
    """End this process as soon as its parent has ended, also where that one was killed and could not end it.

    A thread watches the parent. On Linux the kernel also kills this process, which works where it hangs.

    Args:
        parent: the process identifier of the parent; it may have ended already.
    """
    if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
