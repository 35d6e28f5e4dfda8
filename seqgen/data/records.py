"""Records: lines that contain one or more fields, templates that make one text of the fields, and tables of pairs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Formatter
from typing import Any, Protocol

from seqgen.core.errors import ConfigError, DataError, nearest, shown
from seqgen.data.parquet import read_column_chunks
from seqgen.data.text import CHUNK_BYTES, LineChunk, ParallelFiles, chunks_of, find_files, read_chunks
from seqgen.data.token_store import Reader, TokenEncoder, TokenStore, build_store
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.registry import import_declared
from seqgen.system.error_messages import library_errors
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
        try:
            parsed = list(Formatter().parse(text))
            if any(field == "" or spec or conversion for _, field, spec, conversion in parsed):
                raise ValueError("braces may contain only the name of a field")
        except ValueError as error:
            raise ConfigError(
                f"{where}: the template {text!r} cannot be read ({error}); write a field in braces, as in {{source}}, "
                "and a literal brace twice"
            ) from None
        self.parts = [(literal, field) for literal, field, _, _ in parsed]

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
PARQUET, TMX = ".parquet", ".tmx"


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
        lists: those of them that may also be lists, which stay JSON.
    """

    fields: tuple[str, ...]
    lists: tuple[str, ...] = ()

    def read(self, line: str) -> dict[str, str]:
        """See ``RecordFormat``."""
        record = read_object(line)
        for field in self.fields:
            if field not in record:
                raise ValueError(f"there is no field {field!r}; the line has: {', '.join(record) or 'none'}")
            if field in self.lists and isinstance(record[field], list):
                record[field] = json.dumps(record[field])
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


@dataclass(frozen=True)
class Records:
    """Files of records, and the text of each record.

    Attributes:
        files: the files.
        record_format: the format of their lines.
        template: combines the fields of a line into a text.
        skip_lines: number of lines at the beginning of each file that are not records.
        read: reads a file in chunks of lines.
        skip_empty: whether records without tokens are skipped as blank lines of plain text always are; if false, they
            are an error. ``None`` if they are records as any other.
    """

    files: Sequence[Path]
    record_format: RecordFormat
    template: Template
    skip_lines: int = 0
    read: Reader = read_chunks
    skip_empty: bool | None = None

    def texts(self) -> Iterator[str]:
        """The text of each record, file after file.

        Raises:
            DataError: a file cannot be read, or a line does not have the format.
        """
        for path in self.files:
            for chunk in self.read(path, CHUNK_BYTES):
                yield from self.render(chunk.after(self.skip_lines))

    def render(self, chunk: LineChunk) -> list[str]:
        """The text of each of some lines.

        Args:
            chunk: the lines.

        Raises:
            DataError: a line does not have the format.
        """
        texts = []
        for number, line in enumerate(chunk.decode(), chunk.first):
            try:
                texts.append(self.template.render(self.record_format.read(line)))
            except ValueError as error:
                raise DataError(f"{chunk.path}, line {number}: {error}") from None
        return texts

    def store(self, cache: Path, label: str, tokenizer: Tokenizer, workers: int) -> TokenStore:
        """Encode the text of each record; see ``build_store``.

        Args:
            cache: folder of the stores.
            label: beginning of the store's name.
            tokenizer: encodes the texts.
            workers: number of processes that encode; 0 for one per core.
        """
        encoder = RecordEncoder(tokenizer, self)
        return build_store(
            cache, label, self.files, encoder, workers=workers, skip_lines=self.skip_lines, read=self.read
        )


@dataclass
class RecordEncoder(TokenEncoder):
    """Encodes the texts of records, without end-of-sentence.

    Attributes:
        records: the records.
    """

    records: Records

    def fingerprint(self) -> str:
        """The tokenizer's fingerprint, the format and the template, and whether empty documents are skipped."""
        records = self.records
        content = json.dumps([self.tokenizer.fingerprint(), repr(records.record_format), records.template.text])
        return content if records.skip_empty is None else f"document:{records.skip_empty}:{content}"

    def encode(self, chunk: LineChunk) -> list[list[int]]:
        """The ids of each line; see ``TokenEncoder.encode``."""
        texts, plain = self.records.render(chunk), isinstance(self.records.record_format, PlainFormat)
        encoded = self.tokenizer.encode_lines(texts)
        if self.records.skip_empty is False:
            for number, (text, ids) in enumerate(zip(texts, encoded, strict=True), chunk.first):
                if not ids and not (plain and not text.strip()):
                    raise DataError(
                        f"{chunk.path}, line {number}: the document has no tokens; remove the line, or set "
                        "task.on_empty=skip"
                    )
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
    with library_errors(f"{path}, line 1"):
        return list(read_object(first_line(path)))


def split_columns(line: str) -> list[str]:
    """The columns of a line of TSV."""
    return line.removesuffix("\r").split("\t")


COLUMN_KEYS = ("task.source_column", "task.target_column")


@dataclass(frozen=True)
class Table(ParallelFiles):
    """Files of a table; each of them is both a source file and a target file.

    Attributes:
        sides: the texts of each side, see ``ParallelFiles.of``.
    """

    sides: Mapping[int | str, Records] = dataclasses.field(kw_only=True)

    def lines(self, side: int | str) -> Iterator[str]:
        """The texts of a column; see ``ParallelFiles.lines``."""
        return self.sides[side].texts()

    def check(self, allow_empty: bool = False) -> None:
        """Check that there is a row, since every row is a pair; see ``ParallelFiles.check``."""
        if not allow_empty and next(self.lines(0), None) is None:
            raise DataError(f"{self.source[0]} has no rows; give a table with at least one")


def is_table(name: str) -> bool:
    """True if a file is a table, according to its name."""
    return name.removesuffix(".gz").endswith((".tsv", PARQUET, TMX, *JSON_ENDINGS))


def find_table(
    pattern: str, columns: tuple[str, str], languages: tuple[str, str], key: str, further: Mapping[str, Any]
) -> Table:
    """Find a table, and the columns of source and target.

    Args:
        pattern: the name of the file, or one with wildcards; it ends as ``is_table`` demands.
        columns: the name of each column, or its number from 1 in TSV; empty for that of the language, or, in TSV
            without such a column, the first one for sources and the second one for targets.
        languages: source language and target language.
        key: the configuration key that ``pattern`` comes from, for messages.
        further: the kinds of further columns, by their names.

    Raises:
        DataError: there is no such file, it is empty, or it has no such column.
        ConfigError: both columns are the same.
    """
    files = find_files([pattern], key)
    names = [*(column or language for column, language in zip(columns, languages, strict=True)), *further]
    keys = [*COLUMN_KEYS, *["task.columns" for _ in names[2:]]]
    if pattern.removesuffix(".gz").endswith(PARQUET):
        readers = [partial(read_column_chunks, column=name, key=key) for name, key in zip(names, keys, strict=True)]
        sides = [Records(files, PlainFormat(n), Template.of_field(n), 0, readers[i]) for i, n in enumerate(names)]
    elif pattern.removesuffix(".gz").endswith(TMX):
        if further:
            raise ConfigError(
                f"task.columns: {pattern} has texts in two languages and no further columns; remove the key"
            )
        # the name of the texts is also that of their cache: which units there are depends on both languages
        texts = [f"{names[side]} of {' and '.join(names)}" for side in (0, 1)]
        readers = [partial(read_tmx_chunks, languages=names, side=side) for side in (0, 1)]
        sides = [Records(files, PlainFormat(texts[i]), Template.of_field(texts[i]), 0, readers[i]) for i in (0, 1)]
    else:
        if is_json(Path(pattern)):
            known, skip = read_fields(files[0]), 0
            record_format: RecordFormat = JsonFormat(
                tuple(names), tuple(name for name in further if further[name] != "text")
            )
        else:
            names[:2], known, skip = _tsv_columns(files, columns, languages)
            record_format = TsvFormat(tuple(known))
        for name, key in zip(names, keys, strict=True):
            if name not in known:
                raise DataError(
                    f"{files[0]}, line 1 has no column {name!r}{nearest(name, known)}; the columns are "
                    f"{shown(', '.join(known))}; set {key} to one of them"
                )
        sides = [Records(files, record_format, Template.of_field(name), skip) for name in names]
    if names[0] == names[1]:
        raise ConfigError(f"{' and '.join(COLUMN_KEYS)} are both {names[0]!r}; they must differ")
    return Table(files, files, dict.fromkeys(names[2:], files), sides=dict(zip((0, 1, *names[2:]), sides, strict=True)))


def read_tmx_chunks(file: Path, chunk_bytes: int, *, languages: Sequence[str], side: int) -> Iterator[LineChunk]:
    """Read the texts of a language of TMX as ``read_chunks`` reads the lines of a file.

    Args:
        file: the file.
        chunk_bytes: see ``chunks_of``.
        languages: source language and target language; units without both are left out.
        side: which of them is read.
    """
    pairs = import_declared("seqgen.addons.translation_files.tmx", str(file)).read_pairs(file, languages)
    return chunks_of(file, (pair[side] for pair in pairs), chunk_bytes)


def _tsv_columns(
    files: list[Path], columns: tuple[str, str], languages: tuple[str, str]
) -> tuple[list[str], list[str], int]:
    """The names of the two columns and of all columns of TSV, and the number of lines before the first row.

    Without a header, the columns are named by their numbers.
    """
    first = split_columns(first_line(files[0]))
    numbers = [str(number) for number in range(1, len(first) + 1)]
    defaults = languages if {*languages} & {*first} else ("1", "2")
    names = [column or default for column, default in zip(columns, defaults, strict=True)]
    has_header = not all(name.isdecimal() for name in names)
    known = read_header(files) if has_header else numbers
    by_number = dict(zip(numbers, known, strict=True))
    return [by_number.get(name, name) for name in names], known, int(has_header)
