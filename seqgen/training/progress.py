"""Progress of training on standard error: a bar on a terminal, else lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from seqgen.errors import printable

_BRIEF = ("loss", "tokens_per_second")  # shown next to the bar
_SHOWN = ("loss", "ppl", "accuracy", "gnorm", "lr", "skipped")


class ProgressDisplay(Protocol):
    """Shows the progress of training."""

    def update(self, update: int, epoch: int, record: Mapping[str, float], due: bool, left: float | None) -> None:
        """Show an update.

        Args:
            update: number of the update, from 1.
            epoch: the current epoch, from 1.
            record: means over the updates since the last record that was due, by name.
            due: whether this record is due, by ``common.log_interval``.
            left: estimated seconds until training ends; ``None`` if unknown.
        """

    def message(self, text: str) -> None:
        """Show a line of text permanently."""

    def close(self) -> None:
        """Remove the bar and restore the terminal."""


def make_display(log_format: str, total: int | None) -> ProgressDisplay:
    """Choose a display.

    Args:
        log_format: ``"bar"``, ``"lines"``, ``"none"``, or ``"auto"``: a bar if standard error is a terminal.
        total: number of updates until training ends; ``None`` if unknown.
    """
    if log_format == "none":
        return Silence()
    if log_format == "bar" or (log_format == "auto" and sys.stderr.isatty()):
        return Bar(total)
    return Lines(total)


class Silence:
    """Shows nothing."""

    def update(self, update: int, epoch: int, record: Mapping[str, float], due: bool, left: float | None) -> None:
        """See ``ProgressDisplay``."""

    def message(self, text: str) -> None:
        """See ``ProgressDisplay``."""

    def close(self) -> None:
        """See ``ProgressDisplay``."""


class Lines(Silence):
    """A line for each record."""

    def __init__(self, total: int | None):
        self.total = total

    def update(self, update: int, epoch: int, record: Mapping[str, float], due: bool, left: float | None) -> None:
        """Show a record, if it is due."""
        if due:
            of = f"/{self.total}" if self.total else ""
            remaining = f" | {describe_seconds(left)} left" if left is not None else ""
            self.message(f"update {update}{of} | epoch {epoch} | {describe(record)}{remaining}")

    def message(self, text: str) -> None:
        """Show a line."""
        print(printable(text), file=sys.stderr, flush=True)


class Bar(Silence):
    """A progress bar, updated after every update, with loss, speed and remaining time, in 80 columns."""

    def __init__(self, total: int | None, console: Console | None = None):
        self.console = console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=16),
            TextColumn("{task.completed}" + (f"/{total}" if total else " updates")),
            TextColumn("{task.fields[record]}"),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            refresh_per_second=2,
            transient=True,
        )
        self.task: TaskID = self.progress.add_task("", total=total, epoch=1, record="", left="")
        self.progress.start()

    def update(self, update: int, epoch: int, record: Mapping[str, float], due: bool, left: float | None) -> None:
        """Move the bar."""
        brief = describe({name: record[name] for name in _BRIEF if name in record})
        remaining = f"{describe_seconds(left)} left" if left is not None else ""
        self.progress.update(self.task, completed=update, epoch=epoch, record=brief, left=remaining)

    def message(self, text: str) -> None:
        """Show lines above the bar; those wider than the terminal are broken between values."""
        for line in printable(text).splitlines():
            shown = ""
            for part in line.split(" | "):
                longer = f"{shown} | {part}" if shown else part
                if shown and len(longer) > self.console.width:
                    self.console.print(shown, markup=False, highlight=False, soft_wrap=True)
                    longer = f"    {part}"
                shown = longer
            self.console.print(shown, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        self.progress.stop()


def describe(record: Mapping[str, float]) -> str:
    """Format a record as one line: known values first, then the criterion's own, then the speed."""
    names = [name for name in _SHOWN if name in record]
    if "nll_loss" in record and record["nll_loss"] != record.get("loss"):  # as with label smoothing
        names.insert(1, "nll_loss")
    names += [name for name in record if name not in {*_SHOWN, "nll_loss", "tokens_per_second"}]
    parts = [f"{name} {record[name]:.4g}" for name in names]
    if "tokens_per_second" in record:
        parts.append(f"{record['tokens_per_second']:,.0f} tokens/s")
    return " | ".join(parts)


def describe_parts(record: Mapping[str, float]) -> tuple[str, list[str]]:
    """Format the scores of a mixture: ``de.loss`` is the loss of its part ``de``.

    Args:
        record: scores by name.

    Returns:
        The scores of the whole, as ``describe`` formats them, and one line for each part.
    """
    parts: dict[str, dict[str, float]] = {}
    for name, value in record.items():
        part, dot, score = name.rpartition(".")
        if dot:
            parts.setdefault(part, {})[score] = value
    whole = {name: value for name, value in record.items() if "." not in name}
    return describe(whole), [f"  {part}: {describe(scores)}" for part, scores in parts.items()]


def describe_seconds(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds."""
    return str(timedelta(seconds=round(max(0.0, seconds))))
