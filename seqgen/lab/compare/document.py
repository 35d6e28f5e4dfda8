"""Tables as text of 80 columns, and HTML documents, whose text is escaped unless it is ``Html``."""

from __future__ import annotations

import html
import io
from collections.abc import Container, Iterable, Sequence
from importlib import resources
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 80
"""Columns of text."""


def text_lines(*parts: Table | str) -> list[str]:
    """Tables and sentences as lines; those of tables have at most 80 columns."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, color_system=None)
    for part in parts:
        if isinstance(part, str):
            print(part, file=out)
        else:
            console.print(part)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def rich_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: Sequence[int] = (0,),
    gap: int = 2,
    whole: Container[int] = (),
) -> Table:
    """A table for ``text_lines``.

    Args:
        head: the names of the columns.
        rows: the cells of each row.
        texts: the columns of text; the others are numbers, which are aligned on the right.
        gap: spaces between columns.
        whole: the columns whose cells are not broken into several lines.
    """
    found = Table(box=None, padding=(0, gap, 0, 0))
    for number, name in enumerate(head):
        justify: Any = "left" if number in texts else "right"
        found.add_column(Text(name), justify=justify, overflow="fold", no_wrap=number in whole)
    for cells in rows:
        found.add_row(*map(Text, cells))  # rich reads [name] as markup in plain strings, but not in Text
    return found


class Html(str):
    """Text that is HTML already."""


def escaped(text: object) -> str:
    """A value as HTML text."""
    return text if isinstance(text, Html) else html.escape(str(text))


def element(tag: str, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        tag: its name.
        children: text and elements.
        attributes: its attributes; ``class_`` stands for ``class``, and a value of ``None`` or ``False`` is left out.
    """
    given = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    shown = "".join(
        f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
        for name, value in given.items()
        if value is not None and value is not False
    )
    return Html(f"<{tag}{shown}>{''.join(map(escaped, children))}</{tag}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], caption: str = "", text_columns: int = 1) -> Html:
    """A table; its columns of numbers are aligned on the right.

    Args:
        head: the names of the columns.
        rows: the cells of each row.
        caption: a line above it.
        text_columns: number of columns of text; the further ones are numbers.
    """

    def row(tag: str, cells: Sequence[object]) -> Html:
        own = [element(tag, cell, class_="number" if n >= text_columns else None) for n, cell in enumerate(cells)]
        return element("tr", *own)

    body = element("tbody", *(row("td", cells) for cells in rows))
    parts = [element("caption", caption)] if caption else []
    return element(
        "div", element("table", *parts, element("thead", row("th", head)), body), class_="scroll", tabindex="0"
    )


def document(title: str, *parts: object, script: str = "") -> str:
    """A whole page.

    Args:
        title: the title.
        parts: its elements.
        script: JavaScript that runs at the end.
    """
    style = (resources.files(__package__) / "style.css").read_text(encoding="utf-8")
    body = "\n".join(map(escaped, parts))
    ending = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n"
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n<h1>{html.escape(title)}</h1>\n{body}\n</main>\n"
        f"{ending}</body>\n</html>\n"
    )
