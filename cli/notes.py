"""Notes of the commands about single lines of their input."""

from __future__ import annotations

from collections.abc import Iterable

_NOTES = 20
"""Different notes that are shown."""

_LINES = 5
"""Lines that are named for each of them."""


def summary(notes: Iterable[tuple[int, str]]) -> list[str]:
    """Put notes together, those that say the same on one line.

    Args:
        notes: the number of a line of the input, from 1, and the text of the note.

    Returns:
        A line for each of the first different notes, and one that counts the others. Characters that would act on a
        terminal are shown as escapes.
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
