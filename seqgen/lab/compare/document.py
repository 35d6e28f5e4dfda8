"""HTML documents of headings, tables and pictures. Text is escaped, unless it is ``Html``."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from importlib import resources


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
