"""Signals that ask a job to stop."""

from __future__ import annotations

import signal
from types import FrameType

from seqgen.system.processes import NotedSignals


class JobStopped(Exception):
    """A signal has asked the job to stop.

    Args:
        number: the signal.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Stop(NotedSignals):
    """Notes signals; ``check`` then raises. A second signal ends the process at once."""

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.received = number

    def check(self) -> None:
        """Raise an exception if a signal was received.

        Raises:
            JobStopped: a signal was received.
        """
        if self.received:
            raise JobStopped(self.received)
