"""Processes that end when their parent ends, pools of workers, and the signals that ask a command to stop."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")

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


def compute_ahead(pool: Executor, call: Callable[[T], R], items: Iterable[T], count: int) -> Iterator[R]:
    """Call a function with each item in a pool of workers, which ends with the iteration, also by an exception.

    Args:
        pool: the workers.
        call: the function.
        items: its arguments.
        count: number of results that are computed in advance.

    Yields:
        The results, in the order of the items.
    """
    left = iter(items)
    try:
        waiting = deque(pool.submit(call, item) for item in islice(left, count))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(call, item) for item in islice(left, 1))
            yield result
    finally:
        pool.shutdown(cancel_futures=True)


HANGUP: int = getattr(signal, "SIGHUP", 0)
"""The signal of a closed terminal; 0 on Windows, which has none."""
STOPPING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, *((HANGUP,) if HANGUP else ()))
"""Ctrl-C, the usual request to end, and a closed terminal."""


class NotedSignals:
    """A context manager in which signals are noted in ``received`` instead of ending the process.

    If SIGHUP was ignored before, as under ``nohup``, it stays ignored.

    Attributes:
        received: number of the signal that was received; 0 if none was.
    """

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The exit code after stopping: 128 plus the signal, which is 130, 143 or 129; 0 if no signal was received."""
        return 128 + self.received if self.received else 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers in no other thread
            for number in STOPPING:
                if number != HANGUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *unused: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; a second one ends the process at once."""
        if self.received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.received = number
