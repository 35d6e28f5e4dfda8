"""Records: formats of lines that contain one or more fields, and the templates that make one text of the fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any, Protocol

from seqgen.core.errors import ConfigError, DataError, nearest, shown
from seqgen.data.text import CHUNK_BYTES, read_chunks
from seqgen.data.token_store import LineError, Reader, TokenEncoder, TokenStore, build_store
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.system.reading import parse_json


class Template:
    """A text with fields in braces, such as ``translate English to German: {source}``.

    Only the name of a field is allowed in braces; nothing is evaluated. A literal brace is doubled: ``{{``.

    Args:
        text: the template.
        where: the file and key of the template, for messages.

    Raises:
        ConfigError: the braces do not match, or contain something other than a name.
    """

    def __init__(self, text: str, where: str):
        self.text, self.where = text, where
        self.parts: list[tuple[str, str | None]] = []
        try:
            parsed = list(Formatter().parse(text))
        except ValueError as error:
            raise ConfigError(
                f"{where}: the template {text!r} cannot be read ({error}); write a field in braces, as in {{source}}, "
                "and a literal brace twice"
            ) from None
        for literal, field, spec, conversion in parsed:
            if field == "" or spec or conversion:
                raise ConfigError(
                    f"{where}: in the template {text!r} braces may contain only the name of a field; write "
                    "a literal brace twice"
                )
            self.parts.append((literal, field))

    @classmethod
    def of_field(cls, name: str) -> Template:
        """The template that consists of one field.

        Args:
            name: the field, which may contain any characters.
        """
        template = cls("", "")
        template.text, template.parts = f"{{{name}}}", [("", name)]
        return template

    @property
    def fields(self) -> list[str]:
        """The names of its fields, each once, in order."""
        return list(dict.fromkeys(field for _, field in self.parts if field is not None))

    def check(self, known: Sequence[str]) -> None:
        """Check that records have all fields of the template.

        Args:
            known: the names of the records' fields.

        Raises:
            ConfigError: a field of the template is not among them.
        """
        for field in self.fields:
            if field not in known:
                raise ConfigError(
                    f"{self.where}: the template {self.text!r} names the field {field!r}{nearest(field, known)}, but "
                    f"the fields are: {', '.join(known)}"
                )

    def render(self, record: Mapping[str, str]) -> str:
        """Insert the values of the fields.

        Args:
            record: a text for each field.

        Returns:
            The text.

        Raises:
            KeyError: a field is missing.
        """
        return "".join(text + ("" if field is None else record[field]) for text, field in self.parts)


JSON_ENDINGS = (".jsonl", ".ndjson", ".json")


class RecordFormat(Protocol):
    """The format of a line with fields. It must be picklable, and different formats must have different ``repr``s."""

    def read(self, line: str) -> dict[str, str]:
        """Parse a line.

        Args:
            line: the line, without its ``\\n``.

        Returns:
            The text of each field, by name.

        Raises:
            ValueError: the line does not have this format; the message says why and what to do.
        """


@dataclass(frozen=True)
class PlainFormat:
    """Each line is one field.

    Attributes:
        field: its name.
    """

    field: str

    def read(self, line: str) -> dict[str, str]:
        """See ``RecordFormat``."""
        return {self.field: line}


@dataclass(frozen=True)
class TsvFormat:
    """Each line has columns separated by tabs, without quoting.

    Attributes:
        columns: their names.
    """

    columns: tuple[str, ...]

    def read(self, line: str) -> dict[str, str]:
        """See ``RecordFormat``."""
        values = split_columns(line)
        if len(values) != len(self.columns):
            raise ValueError(f"the line has {len(values)} columns instead of {len(self.columns)}; correct it")
        return dict(zip(self.columns, values, strict=True))


@dataclass(frozen=True)
class JsonFormat:
    """Each line is a JSON object.

    Attributes:
        fields: the fields to read; their values are texts, numbers, true or false.
    """

    fields: tuple[str, ...]

    def read(self, line: str) -> dict[str, str]:
        """See ``RecordFormat``."""
        record = read_object(line)
        for field in self.fields:
            if field not in record:
                raise ValueError(f"there is no field {field!r}; the line has: {', '.join(record) or 'none'}")
            if not isinstance(record[field], str):
                raise ValueError(f"the field {field!r} is not text, a number, true or false; correct the line")
        return {field: record[field] for field in self.fields}


def read_object(line: str) -> dict[str, Any]:
    """Parse a line of JSON. Numbers become text as they are written, truth values become ``true`` and ``false``.

    Args:
        line: the line.

    Returns:
        The fields by name; values that are lists, objects or null are not converted.

    Raises:
        ValueError: the line is not a JSON object.
    """
    try:
        record = parse_json(line, parse_int=str, parse_float=str, parse_constant=str)
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(f"the line is not JSON ({reason}); each line must be one JSON object") from None
    if not isinstance(record, dict):
        raise ValueError('the line is JSON but not an object; each line must be an object such as {"text": "..."}')
    return {key: str(value).lower() if isinstance(value, bool) else value for key, value in record.items()}


def is_json(path: Path) -> bool:
    """True if a file contains JSON lines, according to its name, with or without ``.gz``."""
    return path.name.removesuffix(".gz").endswith(JSON_ENDINGS)


def render_lines(lines: Sequence[str], record_format: RecordFormat, template: Template) -> list[str]:
    """Turn lines of records into texts.

    Args:
        lines: the lines.
        record_format: the format of the lines.
        template: combines the fields into a text.

    Returns:
        The text of each line.

    Raises:
        LineError: a line does not have the format.
    """
    texts = []
    for index, line in enumerate(lines):
        try:
            texts.append(template.render(record_format.read(line)))
        except ValueError as error:
            raise LineError(index, str(error)) from None
    return texts


@dataclass(frozen=True)
class Records:
    """Files of records, and the text of each record.

    Attributes:
        files: the files.
        record_format: the format of their lines.
        template: combines the fields of a line into a text.
        skip_lines: number of lines at the beginning of each file that are not records.
        read: reads a file in chunks of lines.
    """

    files: Sequence[Path]
    record_format: RecordFormat
    template: Template
    skip_lines: int = 0
    read: Reader = read_chunks

    def texts(self) -> Iterator[str]:
        """The text of each record, file after file.

        Raises:
            DataError: a file cannot be read, or a line does not have the format.
        """
        for path in self.files:
            for chunk in (chunk.after(self.skip_lines) for chunk in self.read(path, CHUNK_BYTES)):
                try:
                    yield from render_lines(chunk.decode(), self.record_format, self.template)
                except LineError as error:
                    raise DataError(f"{path}, line {chunk.first + error.index}: {error.reason}") from None

    def store(self, cache: Path, label: str, tokenizer: Tokenizer, workers: int) -> TokenStore:
        """Encode the text of each record; see ``build_store``.

        Args:
            cache: folder of the stores.
            label: beginning of the store's name.
            tokenizer: encodes the texts.
            workers: number of processes that encode; 0 for one per core.
        """
        encoder = RecordEncoder(tokenizer, self.record_format, self.template)
        return build_store(
            cache, label, self.files, encoder, workers=workers, skip_lines=self.skip_lines, read=self.read
        )


@dataclass
class RecordEncoder(TokenEncoder):
    """Encodes lines of records: a template combines the fields into a text, which becomes ids without end-of-sentence.

    Attributes:
        tokenizer: the tokenizer.
        record_format: the format of the lines.
        template: combines the fields into a text.
    """

    record_format: RecordFormat
    template: Template

    def fingerprint(self) -> str:
        """The tokenizer's fingerprint, the format and the template."""
        return json.dumps([self.tokenizer.fingerprint(), repr(self.record_format), self.template.text])

    def encode_lines(self, lines: Sequence[str]) -> list[Any]:
        """The ids of each line."""
        return list(self.tokenizer.encode_lines(render_lines(lines, self.record_format, self.template)))


@dataclass
class DocumentEncoder(RecordEncoder):
    """Encodes documents. Blank lines of plain text are always skipped.

    Attributes:
        skip_empty: whether all documents without tokens are skipped; if false, they are an error.
    """

    skip_empty: bool = False

    def fingerprint(self) -> str:
        """The fingerprint of ``RecordEncoder``, and whether empty documents are skipped."""
        return f"document:{self.skip_empty}:{super().fingerprint()}"

    def encode_lines(self, lines: Sequence[str]) -> list[Any]:
        """The ids of each document.

        Raises:
            LineError: a line does not have the format, or a document has no tokens.
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

    Args:
        path: the file, plain or ``.gz``.

    Raises:
        DataError: the file cannot be read or is empty.
    """
    for chunk in read_chunks(path, 1):
        return chunk.decode()[0]
    raise DataError(f"{path} is empty; give a file with at least one line")


def read_header(files: Sequence[Path]) -> list[str]:
    """The names of the columns of TSV files, which are their first lines.

    Args:
        files: the files, plain or ``.gz``.

    Raises:
        DataError: a file cannot be read, is empty, or has other columns than the first one.
        ConfigError: two columns have the same name.
    """
    columns = split_columns(first_line(files[0]))
    for path in files[1:]:
        if split_columns(first_line(path)) != columns:
            raise DataError(f"the first line of {path} has other columns than that of {files[0]}; give equal columns")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"{files[0]}: two columns have the same name: {shown(', '.join(columns))}")
    return columns


def read_fields(path: Path) -> list[str]:
    """The names of the fields in the first line of a file of JSON lines.

    Args:
        path: the file, plain or ``.gz``.

    Raises:
        DataError: the file cannot be read or is empty, or its first line is not a JSON object.
    """
    try:
        return list(read_object(first_line(path)))
    except ValueError as error:
        raise DataError(f"{path}, line 1: {error}") from None


def split_columns(line: str) -> list[str]:
    """The columns of a line of TSV."""
    return line.removesuffix("\r").split("\t")
