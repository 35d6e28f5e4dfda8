"""Child processes, which end when their parent ends, and the signals that ask a command to stop."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Self, TypeVar

from seqgen.core.errors import UserError

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


@contextmanager
def signals_wait() -> Iterator[None]:
    """Block these signals, here and in processes started meanwhile; those unblock them when they are ready."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it later, with the first process, would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def receive_signals() -> None:
    """Unblock the signals that ``signals_wait`` has blocked, in a process that has installed its handlers."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


class Child:
    """A process started by this one, and the pipe to it.

    Signals are blocked in it until it calls ``receive_signals``.

    Args:
        work: its main function, which gets its end of the pipe and ``args``; it ends when this process ends.
        args: further arguments, which are pickled.
    """

    def __init__(self, work: Callable[..., None], args: Sequence[Any]):
        context = multiprocessing.get_context("spawn")
        self.pipe, other_end = context.Pipe()
        self.process = context.Process(target=_run, args=(os.getpid(), work, other_end, args), daemon=True)
        with signals_wait():
            self.process.start()
        other_end.close()  # only the process has this end now: if it dies, reading from the pipe raises EOFError

    def ended(self, seconds: float) -> str:
        """Wait for the end of the process, at most some seconds; return how it ended, for a message."""
        self.process.join(seconds)
        code = self.process.exitcode
        if code is None:
            return "did not answer"
        if code >= 0:
            return f"ended with exit code {code}"
        killed = -code == getattr(signal, "SIGKILL", 0)
        memory = ", which the operating system sends when memory runs out" if killed else ""
        return f"was ended by {signal.Signals(-code).name}{memory}"

    def kill(self) -> None:
        """Kill the process, if it has not ended."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def sendable(error: Exception, failed: str) -> Exception:
    """The error of a child process that is sent through the pipe: one that can be pickled.

    Args:
        error: what was raised and is being handled.
        failed: what has failed, for the message if the error is not one of the user.
    """
    if isinstance(error, UserError):
        return UserError(str(error))
    return RuntimeError(f"{failed}: {error!r}\n{traceback.format_exc()}")


C = TypeVar("C", bound=Child)


def answering(children: Sequence[C], seconds: float) -> list[C]:
    """Wait until some processes have sent something or died, at most some seconds; return these."""
    ready = wait([child.pipe for child in children], timeout=seconds)
    return [child for child in children if child.pipe in ready]


def _run(parent: int, work: Callable[..., None], pipe: Connection, args: Sequence[Any]) -> None:
    end_with(parent)
    work(pipe, *args)
