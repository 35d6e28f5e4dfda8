"""The page for reviewers: the outputs of a decode with what is known of each, to sort, to compare and to edit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from seqgen.extend import DataError, parse_json, read_lines, render_template

MOST_LINES = 5_000
"""Maximum number of lines of a page; browsers need seconds for them."""
_UNKNOWN: dict[str, Any] = {"text": "", "score": None, "confidence": None, "review": None, "terms": (), "notes": ()}
"""The values that an output need not have."""


def are_outputs(file: str) -> bool:
    """True if the first line of a file is an output in JSON."""
    with suppress(DataError, ValueError):
        record = parse_json(next(read_lines(Path(file)), ""))
        return isinstance(record, dict) and {"id", "source"} <= {*record}
    return False


def read_outputs(file: str) -> list[dict[str, Any]]:
    """Read the outputs that ``seqgen-generate`` has written with ``format=json``.

    Args:
        file: the file.

    Returns:
        For each line its record with the values of its best hypothesis, or those of ``_UNKNOWN``.

    Raises:
        DataError: the file cannot be read, or has other lines, or too many.
    """
    found: list[dict[str, Any]] = []
    for number, text in enumerate(read_lines(Path(file)), start=1):
        if number > MOST_LINES:
            raise DataError(f"{file} has more than {MOST_LINES} lines, the maximum of a page; split it")
        try:
            record = parse_json(text)
            found.append({**_UNKNOWN, **(record.get("hypotheses") or [{}])[0], **record, "source": record["source"]})
        except (ValueError, TypeError, LookupError, AttributeError):
            wanted = "give what seqgen-generate writes with format=json"
            raise DataError(f"line {number} of {file} is not an output; {wanted}") from None
    return found


def page_of_outputs(files: Sequence[str], references: Sequence[str]) -> str:
    """The page of outputs.

    Args:
        files: the outputs to review, and those of other systems.
        references: text files that they are compared with, too.

    Raises:
        DataError: a file cannot be read, or its lines do not belong to those of the first one.
    """
    from jinja2 import TemplateError  # slow to import

    lines, *systems = map(read_outputs, files)
    others = [[line["text"] for line in system] for system in systems]
    others += [list(read_lines(Path(file), pipes=True)) for file in references]
    for file, texts in zip([*files[1:], *references], others, strict=True):
        if len(texts) != len(lines):
            raise DataError(f"{files[0]} has {len(lines)} lines but {file} has {len(texts)}; line n must belong to n")
    for number, (line, *same) in enumerate(zip(lines, *systems, strict=True), start=1):
        if any(line["source"] != other["source"] for other in same):
            raise DataError(f"line {number} of {', '.join(files)} has different sources; give decodes of one text")
    names = [Path(file).name for file in (*files, *references)]
    try:
        return render_template(__package__, "outputs.html", names=names, lines=lines, others=others)
    except (TypeError, ValueError, TemplateError):
        raise DataError(f"{files[0]} is damaged: it has values that seqgen-generate does not write") from None
