"""Stopping a training run from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_NOTE = b"\nstopping after this update, and saving; a second signal ends at once\n"


class StopSignals:
    """While it is entered, SIGINT and SIGTERM ask training to stop; the second one ends the process at once.

    Attributes:
        received: number of the signal that asked, 0 as long as none has.
    """

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """What a command exits with after stopping: 128 + signal, so 130 for SIGINT and 143 for SIGTERM."""
        return 128 + self.received if self.received else 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals nowhere else
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            with contextlib.suppress(OSError):
                os.write(2, b"\x1b[?25h" if os.isatty(2) else b"")  # the bar hides the cursor
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received = number
        with contextlib.suppress(OSError):
            os.write(2, _NOTE)
