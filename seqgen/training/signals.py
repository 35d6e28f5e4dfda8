"""Stopping a training run from outside."""

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
    """While it is entered, SIGINT, SIGTERM and SIGHUP ask training to stop.

    SIGHUP stays ignored where it was, as under ``nohup``.

    Args:
        second_ends: whether a second signal ends the process at once. It must not where one request arrives twice:
            from the terminal, and from the launcher that passes on what it gets.

    Attributes:
        received: number of the signal that asked, 0 as long as none has.
    """

    def __init__(self, *, second_ends: bool = True) -> None:
        self.received = 0
        self.second_ends = second_ends
        self._previous: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """What a command exits with after stopping: 128 + signal, so 130, 143 or 129 for the three."""
        return 128 + self.received if self.received else 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals nowhere else
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
        if self.second_ends:  # otherwise the launcher has printed it
            with contextlib.suppress(OSError):
                os.write(2, _NOTE)


def _leave_terminal() -> None:
    """Redirect output to the null device: writing to a closed terminal is an error, which would stop training."""
    with open(os.devnull, "w") as nowhere:
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):
                if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                    os.dup2(nowhere.fileno(), descriptor)
