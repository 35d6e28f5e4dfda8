"""Tables as text of 80 columns."""

from __future__ import annotations

import io
from collections.abc import Container, Iterable, Sequence
from typing import Any

WIDTH = 80
"""Columns of text."""


def table_text(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    texts: Container[int] = (0,),
    whole: Container[int] = (),
    gap: int = 2,
    width: int = WIDTH,
) -> str:
    """A table as lines, without an empty one at the end.

    Args:
        head: the names of the columns.
        rows: the cells of each row.
        texts: the columns of text; the others are numbers, which are aligned on the right.
        whole: the columns whose cells are not broken into several lines.
        gap: spaces between columns.
        width: maximum number of columns.
    """
    from rich.console import Console  # slow to import
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, gap, 0, 0))
    for number, name in enumerate(head):
        justify: Any = "left" if number in texts else "right"
        table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=number in whole)
    for cells in rows:
        table.add_row(*map(Text, cells))  # rich reads [name] as markup in plain strings, but not in Text
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n")).rstrip()
