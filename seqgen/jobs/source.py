"""The input of a job: the lines of text, JSON lines and Parquet files, in order and in constant memory, and its parts.

A part has consecutive lines of the input, and is found again by the hash of their text.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqgen.data.text import decode_line, find_files, read_chunks
from seqgen.errors import ConfigError, DataError, nearest, shown
from seqgen.system.reading import parse_json

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""The format of a file by the end of its name, before ``.gz``; all other files are text."""

ROWS = 4096
"""Number of rows of a Parquet file that are read at a time."""

_RATIO, _SMALL = 1000, 1 << 26
"""Characters that a Parquet file may have for each of its bytes, as a ``.gz`` file; more are possible if they are
fewer than the second number."""


@dataclass(frozen=True)
class Source:
    """The files of a job's input.

    Attributes:
        files: the files, in the order in which they are read.
        format: a format for all files, or ``auto`` for that of each file's name.
        column: field of JSON lines, or column of Parquet files, with the text.
    """

    files: tuple[Path, ...]
    format: str = "auto"
    column: str = "text"

    def lines(self) -> Iterator[str]:
        """The lines of all files.

        Raises:
            DataError: a file cannot be read, or a line or row has no text.
            ConfigError: a package is missing that reads the format.
        """
        for file in self.files:
            yield from self.lines_of(file)

    def lines_of(self, file: Path) -> Iterator[str]:
        """The lines of one file; see ``lines``."""
        kind = self.format
        if kind == "auto":
            kind = FORMATS.get(Path(file.name.removesuffix(".gz")).suffix, "text")
        if kind == "parquet":
            return self._rows(file)
        return self._records(file) if kind == "jsonl" else _texts(file)

    def _records(self, file: Path) -> Iterator[str]:
        for chunk in read_chunks(file):
            for number, line in enumerate(chunk.lines, start=chunk.first):
                if line.strip():
                    yield self._text(_parsed(line, file, number), f"{file}, line {number}")

    def _text(self, record: Any, where: str) -> str:
        if not isinstance(record, dict):
            raise DataError(f"{where}: {shown(record)} is not an object such as {{{self.column!r}: ...}}")
        if self.column not in record:
            raise DataError(
                f"{where} has no field {self.column!r}{nearest(self.column, map(str, record))}; name the field of the "
                "text by job.column"
            )
        return _checked(record[self.column], self.column, where)

    def _rows(self, file: Path) -> Iterator[str]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise ConfigError(f"{file} is read by a package that is missing: pip install pyarrow") from None
        number = size = 0
        try:
            schema, limit = parquet.read_schema(file), max(_SMALL, _RATIO * file.stat().st_size)
            self._check_column(schema, file)
            # as a dictionary, a text that a small file repeats is in memory once
            with parquet.ParquetFile(file, read_dictionary=[self.column]) as table:
                for batch in table.iter_batches(ROWS, columns=[self.column]):
                    for value in batch.column(0):
                        number += 1
                        text = _checked(value.as_py(), self.column, f"{file}, row {number}")
                        size += len(text)
                        if size > limit:
                            raise DataError(
                                f"{file}, row {number}: the text up to here has more than {limit} characters, "
                                f"{_RATIO} times the size of the file; give it as JSON lines if you trust it"
                            )
                        yield text
        except FileNotFoundError:
            raise DataError(f"there is no file {file}") from None
        except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise DataError(
                f"cannot read {file} after row {number}: {' '.join(str(error).split())[:200]}; is it a Parquet file?"
            ) from None

    def _check_column(self, schema: Any, file: Path) -> None:
        """Refuse a Parquet file whose column is missing or not text."""
        if self.column not in schema.names:
            raise DataError(
                f"{file} has no column {self.column!r}{nearest(self.column, schema.names)}; name the column of the "
                "text by job.column"
            )
        kind = schema.field(self.column).type
        kind = kind.value_type if str(kind).startswith("dictionary") else kind
        if str(kind) not in ("string", "large_string", "string_view"):
            raise DataError(
                f"{file}: the values of {self.column!r} are not text but {shown(str(kind))}; name the column of the "
                "text by job.column"
            )


def find_source(pattern: str, file_format: str = "auto", column: str = "text") -> Source:
    """Find the files of an input.

    Args:
        pattern: a file, a folder (its files, without those of folders inside it and hidden ones), or a name with
            wildcards; files are sorted by name.
        file_format: see ``Source``.
        column: see ``Source``.

    Raises:
        DataError: there is no such file, or the folder has no files.
    """
    folder = Path(pattern)
    if not folder.is_dir():
        if not folder.exists():
            return Source(tuple(find_files([pattern], "input")), file_format, column)
        if not folder.is_file():
            raise DataError(f"input={pattern} is not a regular file; a job reads its input more than once")
        return Source((folder,), file_format, column)
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not files:
        raise DataError(f"input={pattern}: the folder has no files")
    return Source(tuple(files), file_format, column)


def _texts(file: Path) -> Iterator[str]:
    for chunk in read_chunks(file):
        yield from chunk.decode()


def _parsed(line: bytes, file: Path, number: int) -> Any:
    try:
        return parse_json(decode_line(line, file, number))
    except ValueError as error:
        raise DataError(f"{file}, line {number} is not JSON: {error}") from None


def _checked(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: {column} is {shown(value)}, which is not text")
    return value


@dataclass(frozen=True)
class Part:
    """A part of the input.

    Attributes:
        index: number of the part, from 0.
        first: number of its first line in the whole input, from 0.
        lines: number of its lines.
        digest: hash of the lines' text.
    """

    index: int
    first: int
    lines: int
    digest: str


@dataclass(frozen=True)
class Plan:
    """The division of an input into parts.

    Attributes:
        parts: the parts, in order; one entry for each ``part_lines`` lines, which is all that grows with the input.
        files: each file with the number of its lines.
    """

    parts: list[Part]
    files: list[tuple[str, int]]

    @property
    def lines(self) -> int:
        """Number of lines of the whole input."""
        return self.parts[-1].first + self.parts[-1].lines if self.parts else 0


def text_digest(lines: Iterable[str]) -> str:
    """Hash lines; a line may contain any character."""
    total = hashlib.sha256()
    for line in lines:
        content = line.encode("utf-8", "surrogatepass")
        total.update(b"%d:" % len(content))
        total.update(content)
    return total.hexdigest()


def cut(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Cut lines into lists of ``size`` lines; the last one can be shorter."""
    lines = iter(lines)
    while some := list(itertools.islice(lines, size)):
        yield some


def plan_parts(source: Source, size: int, check: Callable[[], None] = lambda: None) -> Plan:
    """Read the whole input once, and cut it into parts; errors in it are found before anything is decoded.

    Args:
        source: the input.
        size: lines of each part.
        check: called after each part; may raise an exception to stop.

    Raises:
        DataError: a file cannot be read, or a line has no text.
    """
    counts = [0] * len(source.files)

    def counted(place: int, file: Path) -> Iterator[str]:
        for line in source.lines_of(file):
            counts[place] += 1
            yield line

    parts: list[Part] = []
    first = 0
    every = itertools.chain.from_iterable(counted(place, file) for place, file in enumerate(source.files))
    for lines in cut(every, size):
        parts.append(Part(len(parts), first, len(lines), text_digest(lines)))
        first += len(lines)
        check()
    return Plan(parts, [(str(file), count) for file, count in zip(source.files, counts, strict=True)])
