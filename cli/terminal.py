"""Decoding at a terminal: a prompt for typed lines, notes on lines and their summary, and a progress bar for files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from seqgen.cli.command import log
from seqgen.system.progress import Bar, clock

_NOTES = 20
"""Maximum number of different notes shown."""

_LINES = 5
"""Maximum number of line numbers shown per note."""


def summary(notes: Iterable[tuple[int, str]]) -> list[str]:
    """Merge notes with the same text.

    Args:
        notes: pairs of the number of an input line, from 1, and the text of a note.

    Returns:
        One line for each of the first different notes, and one that counts the others. Control characters are escaped,
        so that they have no effect on a terminal.
    """
    lines_of: dict[str, list[int]] = {}
    for line, note in notes:
        lines_of.setdefault(note, []).append(line)
    shown = [f"{_numbers(lines)}: {_printable(note)}" for note, lines in lines_of.items()]
    left = len(shown) - _NOTES
    return [*shown[:_NOTES], *([f"... and {left} further notes; format=json writes all of them"] if left > 0 else [])]


def _numbers(lines: list[int]) -> str:
    named = ", ".join(map(str, lines[:_LINES]))
    if len(lines) == 1:
        return f"line {named}"
    return f"lines {named}" + (f" and {len(lines) - _LINES} others" if len(lines) > _LINES else "")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
