"""Signals that stop a training run after the current update."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_HANGUP: int = getattr(signal, "SIGHUP", 0)
STOPPING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, *((_HANGUP,) if _HANGUP else ()))
"""The signals that ask training to stop; Windows has no SIGHUP."""
_NOTE = b"\nstopping after this update and saving; a second signal stops immediately\n"


class StopSignals:
    """A context manager in which SIGINT, SIGTERM and SIGHUP are noted in ``received`` instead of ending the process.

    If SIGHUP was ignored before, as under ``nohup``, it stays ignored.

    Args:
        second_ends: whether a second signal ends the process immediately. False for a process that may get one request
            twice: from the terminal, and from the launcher, which forwards its signals.

    Attributes:
        received: number of the signal that was received; 0 if none was.
    """

    def __init__(self, *, second_ends: bool = True) -> None:
        self.received = 0
        self.second_ends = second_ends
        self._previous: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The exit code after stopping: 128 plus the signal, which is 130, 143 or 129; 0 if no signal was received."""
        return 128 + self.received if self.received else 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers in no other thread
            for number in STOPPING:
                if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == _HANGUP:
            _leave_terminal()
        if self.received and not self.second_ends:
            return
        if self.received:
            with contextlib.suppress(OSError):
                os.write(2, b"\x1b[?25h" if os.isatty(2) else b"")  # the bar hides the cursor
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received = number
        if self.second_ends:  # otherwise the launcher prints it
            with contextlib.suppress(OSError):
                os.write(2, _NOTE)


def _leave_terminal() -> None:
    """Redirect output to the null device, since writing to a closed terminal raises an error."""
    with open(os.devnull, "w") as nowhere:
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):
                if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                    os.dup2(nowhere.fileno(), descriptor)
