"""Tables as text of 80 columns."""

from __future__ import annotations

import io
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 80
"""Columns of text."""


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        head: the names of the columns.
        rows: the cells of each row.
        texts: the columns of text; the others are numbers, which are aligned on the right.
        whole: the columns whose cells are not broken into several lines.
        gap: spaces between columns.
    """

    head: Sequence[str]
    rows: Iterable[Sequence[str]]
    texts: Container[int] = (0,)
    whole: Container[int] = ()
    gap: int = 2


def text_of(parts: Iterable[Table | str], width: int = WIDTH) -> str:
    """Tables and sentences as lines, without an empty one at the end.

    Args:
        parts: tables and sentences.
        width: maximum number of columns of tables.
    """
    from rich.console import Console  # slow to import
    from rich.table import Table as RichTable
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    for part in parts:
        if isinstance(part, str):
            print(part, file=out)
            continue
        table = RichTable(box=None, padding=(0, part.gap, 0, 0))
        for number, name in enumerate(part.head):
            justify: Any = "left" if number in part.texts else "right"
            table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=number in part.whole)
        for cells in part.rows:
            table.add_row(*map(Text, cells))  # rich reads [name] as markup in plain strings, but not in Text
        console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n")).rstrip()
