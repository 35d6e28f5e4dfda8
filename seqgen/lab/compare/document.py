"""Tables as text of 80 columns and as HTML pages."""

from __future__ import annotations

import html
import io
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Any

WIDTH = 80
"""Columns of text."""


class Html(str):
    """Text that is HTML already, and is not escaped."""


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        head: the names of the columns.
        rows: the cells of each row.
        title: a line above it; empty for none.
        texts: the columns of text; the others are numbers, which are aligned on the right.
        whole: the columns whose cells are not broken into several lines.
        gap: spaces between columns.
    """

    head: Sequence[str]
    rows: Iterable[Sequence[str]]
    title: str = ""
    texts: Container[int] = (0,)
    whole: Container[int] = ()
    gap: int = 2


def text_of(parts: Iterable[Table | str]) -> str:
    """Tables and sentences as lines, without an empty one at the end; those of tables have at most 80 columns."""
    from rich.console import Console  # slow to import
    from rich.table import Table as RichTable
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, width=WIDTH, color_system=None)
    for part in parts:
        if isinstance(part, str):
            print(part, file=out)
            continue
        if part.title:
            print(f"\n{part.title}", file=out)
        table = RichTable(box=None, padding=(0, part.gap, 0, 0))
        for number, name in enumerate(part.head):
            justify: Any = "left" if number in part.texts else "right"
            table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=number in part.whole)
        for cells in part.rows:
            table.add_row(*map(Text, cells))  # rich reads [name] as markup in plain strings, but not in Text
        console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n")).rstrip()


def page_of(title: str, parts: Iterable[Table | str]) -> str:
    """Tables and sentences as an HTML page that needs no network."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    for part in parts:
        if isinstance(part, str):
            body.append(f"<p>{html.escape(part)}</p>" if part else "")
            continue
        rows = "\n".join(_row("td", cells, part.texts) for cells in part.rows)
        table = f"<table><thead>{_row('th', part.head, part.texts)}</thead>\n<tbody>\n{rows}\n</tbody></table>"
        body.append(f"<h2>{html.escape(part.title)}</h2>" if part.title else "")
        body.append(f'<div class="scroll" tabindex="0">{table}</div>')
    page = Template((resources.files(__package__) / "page.html").read_text(encoding="utf-8"))
    return page.substitute(title=html.escape(title), body="\n".join(filter(None, body)))


def _row(tag: str, cells: Sequence[str], texts: Container[int]) -> str:
    shown = [cell if isinstance(cell, Html) else html.escape(cell) for cell in cells]
    starts = [f"<{tag}>" if number in texts else f'<{tag} class="number">' for number in range(len(cells))]
    return "<tr>" + "".join(f"{start}{cell}</{tag}>" for start, cell in zip(starts, shown, strict=True)) + "</tr>"
