"""Progress for people: durations, a bar on a terminal, and the progress of decoding lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

MINUTE, HOUR, DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """A duration in words: ``45 s``, ``12 min``, ``3 h 20 min``, ``2 d 5 h``."""
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{int(seconds // HOUR)} h {int(seconds % HOUR // MINUTE)} min"
    return f"{int(seconds // DAY)} d {int(seconds % DAY // HOUR)} h"


def clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds, such as ``1:02:03``."""
    whole = round(max(0.0, seconds))
    return f"{whole // HOUR}:{whole // MINUTE % 60:02}:{whole % MINUTE:02}"


class LineProgress:
    """Lines done, lines per second, expected end, and failed lines: as a bar, or a line of text now and then.

    The clock is one that never goes backwards.

    Args:
        total: number of lines; ``None`` if unknown.
        done: those that were done before.
        failed: those of them without an answer.
        interval: seconds between two lines of text where there is no terminal; 0 for none.
        log: prints a line.
    """

    def __init__(self, total: int | None, done: int, failed: int, interval: float, log: Callable[[str], None]):
        self.total, self.before, self.done, self.failed = total, done, done, failed
        self.start = self.last = time.monotonic()
        self.interval, self.log = interval, log
        self.bar = self._begin_bar() if sys.stderr.isatty() else None

    def _begin_bar(self) -> Any:
        from rich.console import Console  # not for commands whose output goes into a file or pipe
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[behind]}"))
        bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True)
        bar.add_task("decoding", total=self.total, completed=self.done, behind=self.text())
        bar.start()
        return bar

    def advance(self, lines: int, failed: int) -> None:
        """Count lines that are decoded."""
        self.done += lines
        self.failed += failed
        self.tick()

    def tick(self) -> None:
        """Show the state, if it is time to."""
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done, behind=self.text())
            return
        now = time.monotonic()
        if self.interval and now - self.last >= self.interval:
            self.last = now
            self.log(self.text())

    def text(self) -> str:
        """The state as a line of text."""
        parts = [f"{self.done} lines"]
        if self.total is not None:
            share = 100 * self.done // self.total if self.total else 100
            parts = [f"{self.done} of {self.total} lines ({share} %)"]
        if self.done > self.before + 1:  # the first line of a batch took as long as the batch
            rate = (self.done - self.before) / max(1e-9, time.monotonic() - self.start)
            parts.append(f"{rate:.1f} lines/s")
            if self.total is not None:
                parts.append(f"{duration((self.total - self.done) / rate)} left")
        if self.failed:
            parts.append(f"{self.failed} failed")
        return ", ".join(parts)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
