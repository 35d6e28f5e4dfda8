"""Decoding at a terminal: a prompt for typed lines, notes on each line at once, and a progress bar for files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from seqgen.cli.command import log
from seqgen.cli.notes import summary

PROMPT = "> "


class TypedLines:
    """The lines that a user types at a terminal, with a prompt before each on standard error.

    Args:
        file: the terminal, opened for bytes.

    Attributes:
        waited: seconds for which the command has waited for the user.
    """

    def __init__(self, file: IO[bytes]):
        self.file = file
        self.waited = 0.0

    def readline(self, limit: int) -> bytes:
        """Prompt for a line and return its first ``limit`` bytes; empty at the end of the input."""
        print(PROMPT, end="", file=sys.stderr, flush=True)
        start = time.perf_counter()
        line = self.file.readline(limit)
        self.waited += time.perf_counter() - start
        if not line:
            print(file=sys.stderr)  # Ctrl-D leaves the cursor behind the prompt
        return line

    def show_notes(self, line: int, notes: Sequence[str]) -> None:
        """Print the notes on a line.

        Args:
            line: its number, from 1.
            notes: what the user should know about its output.
        """
        for text in summary((line, note) for note in notes):
            log(text)


@contextmanager
def decoding_bar(total: int | None, output: str) -> Iterator[Callable[[], None] | None]:
    """Show a progress bar while lines are decoded, if standard error is a terminal that does not show the output too.

    Args:
        total: number of lines; ``None`` if unknown.
        output: where the output is written; ``-`` for standard output.

    Yields:
        A function to call after each line; ``None`` if no bar is shown.
    """
    if not sys.stderr.isatty() or (output == "-" and sys.stdout.isatty()):
        yield None
        return
    from rich.console import Console  # not for commands whose output goes into a file or pipe
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("decoding"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
