"""Decoding at a terminal: a prompt for typed lines, notes on each line at once, and a progress bar for files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from seqgen.cli.command import log
from seqgen.cli.notes import summary
from seqgen.system.progress import Bar, clock

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
    done, start = 0, time.perf_counter()
    of = "?" if total is None else total
    bar = Bar(total, "decoding", f"0/{of} -:--:--")

    def advance() -> None:
        nonlocal done
        done += 1
        left = "-:--:--" if total is None else clock((total - done) * (time.perf_counter() - start) / done)
        bar.update(done, f"{done}/{of} {left}")

    try:
        yield advance
    finally:
        bar.close()
