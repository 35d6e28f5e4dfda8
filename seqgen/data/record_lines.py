"""Lines that hold several fields, or one, and documents: what is encoded of a text file's lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seqgen.data.store_builder import LineError, TokenEncoder
from seqgen.data.templates import Template
from seqgen.data.text import read_chunks
from seqgen.errors import DataError
from seqgen.reading import parse_json

JSON_ENDINGS = (".jsonl", ".ndjson", ".json")


class RecordFormat(Protocol):
    """The format of a line's fields. It must be picklable, and different formats must have different ``repr``s."""

    def read(self, line: str) -> dict[str, str]:
        """The fields of a line.

        Raises:
            ValueError: the line cannot be used; the message says why and what to do.
        """


@dataclass(frozen=True)
class PlainFormat:
    """The line is one field.

    Attributes:
        field: its name.
    """

    field: str

    def read(self, line: str) -> dict[str, str]:
        """See ``RecordFormat``."""
        return {self.field: line}


@dataclass(frozen=True)
class TsvFormat:
    """Columns with a tab between them; there is no quoting.

    Attributes:
        columns: their names.
    """

    columns: tuple[str, ...]

    def read(self, line: str) -> dict[str, str]:
        """See ``RecordFormat``."""
        values = line.removesuffix("\r").split("\t")
        if len(values) != len(self.columns):
            raise ValueError(f"there are {len(values)} columns instead of {len(self.columns)}; correct the line")
        return dict(zip(self.columns, values, strict=True))


@dataclass(frozen=True)
class JsonFormat:
    """A JSON object in each line.

    Attributes:
        fields: the fields that are wanted: texts, numbers or truth values.
    """

    fields: tuple[str, ...]

    def read(self, line: str) -> dict[str, str]:
        """See ``RecordFormat``."""
        record = read_object(line)
        for field in self.fields:
            if field not in record:
                raise ValueError(f"there is no field {field!r}; there are: {', '.join(record) or 'none'}")
            if not isinstance(record[field], str):
                raise ValueError(f"the field {field!r} is not text, a number, true or false; correct the line")
        return {field: record[field] for field in self.fields}


def read_object(line: str) -> dict[str, Any]:
    """Read a line of JSON; numbers stay as they are written, and truth values become ``true`` and ``false``.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        record = parse_json(line, parse_int=str, parse_float=str, parse_constant=str)
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(f"it is not JSON ({reason}); each line must be one JSON object") from None
    if not isinstance(record, dict):
        raise ValueError('it is JSON but not an object; each line must be an object such as {"text": "..."}')
    return {key: str(value).lower() if isinstance(value, bool) else value for key, value in record.items()}


def is_json(path: Path) -> bool:
    """Whether a file holds JSON lines, told by its name, ``.gz`` or not."""
    return path.name.removesuffix(".gz").endswith(JSON_ENDINGS)


def render_lines(lines: Sequence[str], record_format: RecordFormat, template: Template) -> list[str]:
    """Turn lines into texts.

    Args:
        lines: the lines.
        record_format: how they hold fields.
        template: what becomes of the fields.

    Raises:
        LineError: a line cannot be used.
    """
    texts = []
    for index, line in enumerate(lines):
        try:
            texts.append(template.render(record_format.read(line)))
        except ValueError as error:
            raise LineError(index, str(error)) from None
    return texts


def read_rendered(
    paths: Sequence[Path], record_format: RecordFormat, template: Template, skip_lines: int = 0
) -> Iterator[str]:
    """Read files of records as texts.

    Args:
        paths: the files, one after the other.
        record_format: how their lines hold fields.
        template: what becomes of the fields.
        skip_lines: lines at the beginning of each file that are no records.

    Raises:
        DataError: a file cannot be read, or a line cannot be used.
    """
    for path in paths:
        for chunk in (chunk.after(skip_lines) for chunk in read_chunks(path)):
            try:
                yield from render_lines(chunk.decode(), record_format, template)
            except LineError as error:
                raise DataError(f"{path}, line {chunk.first + error.index}: {error.reason}") from None


@dataclass
class RecordEncoder(TokenEncoder):
    """Lines of records to a tokenizer's ids, through a template, without end-of-sentence."""

    record_format: RecordFormat
    template: Template

    def fingerprint(self) -> str:
        """The tokenizer's, the format and the template."""
        return json.dumps([self.tokenizer.fingerprint(), repr(self.record_format), self.template.text])

    def encode_lines(self, lines: Sequence[str]) -> list[Any]:
        """The ids of each line."""
        return list(self.tokenizer.encode_lines(render_lines(lines, self.record_format, self.template)))


@dataclass
class DocumentEncoder(RecordEncoder):
    """Documents to ids. Blank lines of plain text are ignored; another document without tokens is an error or skipped.

    Attributes:
        skip_empty: whether it is skipped.
    """

    skip_empty: bool = False

    def fingerprint(self) -> str:
        """Depends also on whether empty documents are skipped."""
        return f"document:{self.skip_empty}:{super().fingerprint()}"

    def encode_lines(self, lines: Sequence[str]) -> list[Any]:
        """The ids of each document.

        Raises:
            LineError: a line is no record, or a document has no token.
        """
        encoded = super().encode_lines(lines)
        if not self.skip_empty:
            plain = isinstance(self.record_format, PlainFormat)
            for index, (line, ids) in enumerate(zip(lines, encoded, strict=True)):
                if len(ids) == 0 and not (plain and not line.strip()):
                    raise LineError(index, "the document has no tokens; remove the line, or set task.on_empty=skip")
        return encoded


def first_line(path: Path) -> str:
    """The first line of a file.

    Raises:
        DataError: the file cannot be read or is empty.
    """
    for chunk in read_chunks(path, 1):
        return chunk.decode()[0]
    raise DataError(f"{path} is empty; give a file with at least one line")
