"""The progress of a job for people: one bar for all workers, or a line of text now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

MINUTE, HOUR, DAY = 60, 3600, 86400


class Progress:
    """Lines done, lines per second, expected end, and failed lines.

    The clock is one that never goes backwards.

    Args:
        total: number of lines of the job.
        done: those that were done before.
        failed: those of them without an answer.
        interval: seconds between two lines of text where there is no terminal; 0 for none.
        log: prints a line.
        terminal: whether standard error is a terminal, which shows a bar.
    """

    def __init__(
        self,
        total: int,
        done: int,
        failed: int,
        interval: float,
        log: Callable[[str], None],
        terminal: bool | None = None,
    ):
        self.total, self.before, self.done, self.failed = total, done, done, failed
        self.start = self.last = time.monotonic()
        self.interval, self.log = interval, log
        self._bar: Any = None
        if sys.stderr.isatty() if terminal is None else terminal:
            self._show_bar()

    def _show_bar(self) -> None:
        from rich.console import Console  # not where output goes into a file
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("decoding"), BarColumn(bar_width=24), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True)
        self._bar.add_task(self.text(), total=self.total, completed=self.done)
        self._bar.start()

    def advance(self, lines: int, failed: int) -> None:
        """Count lines that are decoded."""
        self.done += lines
        self.failed += failed
        self.tick()

    def tick(self) -> None:
        """Show the state, if it is time to."""
        if self._bar is not None:
            self._bar.update(0, completed=self.done, description=self.text())
            return
        now = time.monotonic()
        if self.interval and now - self.last >= self.interval:
            self.last = now
            self.log(self.text())

    @property
    def rate(self) -> float:
        """Lines per second since the job was started or continued."""
        return (self.done - self.before) / max(1e-9, time.monotonic() - self.start)

    def text(self) -> str:
        """The state as a line of text."""
        share = 100 * self.done // self.total if self.total else 100
        parts = [f"{self.done} of {self.total} lines ({share} %)"]
        if self.done > self.before:
            parts += [f"{self.rate:.1f} lines/s", f"{duration((self.total - self.done) / self.rate)} left"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        return ", ".join(parts)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def duration(seconds: float) -> str:
    """A duration for people: ``45 s``, ``12 min``, ``3 h 20 min``, ``2 d 5 h``."""
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{int(seconds // HOUR)} h {int(seconds % HOUR // MINUTE)} min"
    return f"{int(seconds // DAY)} d {int(seconds % DAY // HOUR)} h"
