"""Child processes and the pipes to them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from seqgen.extend import STOPPING, UserError, end_with


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


def receive_sigterm_only() -> None:
    """Unblock the signals that ``signals_wait`` has blocked; Ctrl-C and a closed terminal end the parent only."""
    for ignored in set(STOPPING) - {signal.SIGTERM}:
        signal.signal(ignored, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


class Child:
    """A process started by this one, and the pipe to it.

    Signals are blocked in it until it calls ``receive_sigterm_only``.

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
