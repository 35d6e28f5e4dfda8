"""Signals that stop a training run after the current update."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from types import FrameType

from seqgen.system.processes import HANGUP, NotedSignals

_NOTE = b"\nstopping after this update and saving; a second signal stops immediately\n"


class StopSignals(NotedSignals):
    """Notes signals, and says that training stops after the update.

    Args:
        second_ends: whether a second signal ends the process immediately. False for a process that may get one request
            twice: from the terminal, and from the launcher, which forwards its signals.
    """

    def __init__(self, *, second_ends: bool = True) -> None:
        super().__init__()
        self.second_ends = second_ends

    @property
    def exit_code(self) -> int:
        """The exit code after stopping: 128 plus the signal, which is 130, 143 or 129; 0 if no signal was received."""
        return 128 + self.received if self.received else 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
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
