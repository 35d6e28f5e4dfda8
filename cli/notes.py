"""Summaries of the notes about single input lines."""

from __future__ import annotations

from collections.abc import Iterable

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
