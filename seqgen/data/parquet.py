"""Parquet files: the texts of a column, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqgen.core.errors import ConfigError, DataError, nearest, shown
from seqgen.data.text import CHUNK_BYTES, LineChunk, chunks_of

ROWS = 4096
"""Number of rows that are read at a time."""

_RATIO, _SMALL = 1000, 1 << 26
"""Maximum characters of text for each byte of a file, as for ``.gz`` files; the limit does not apply to texts of
fewer characters than the second number."""


def read_column(file: Path, column: str, key: str) -> Iterator[str]:
    """Read the texts of a column, row by row.

    Args:
        file: the file.
        column: name of the column.
        key: the configuration key that names the column, for messages.

    Raises:
        DataError: the file is missing or damaged, the column is missing, or a value is not text.
        ConfigError: the package is missing that reads the format.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(f"{file} can be read only with a package that is missing: pip install pyarrow") from None
    number = size = 0
    try:
        schema, limit = parquet.read_schema(file), max(_SMALL, _RATIO * file.stat().st_size)
        _check_column(schema, file, column, key)
        # as a dictionary, a text that a small file repeats is in memory once
        with parquet.ParquetFile(file, read_dictionary=[column]) as table:
            for batch in table.iter_batches(ROWS, columns=[column]):
                for value in batch.column(column):  # not 0: the field b of a column a is also read as "a.b"
                    number += 1
                    text = check_text(value.as_py(), column, f"{file}, row {number}")
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


def read_column_chunks(file: Path, chunk_bytes: int = CHUNK_BYTES, *, column: str, key: str) -> Iterator[LineChunk]:
    """Read the texts of a column as ``read_chunks`` reads the lines of a file; see ``read_column``.

    Args:
        file: the file.
        chunk_bytes: approximate number of bytes of text in a chunk.
        column: see ``read_column``.
        key: see ``read_column``.

    Returns:
        The chunks, in which a row is a line.
    """
    return chunks_of(file, read_column(file, column, key), chunk_bytes)


def check_text(value: Any, column: str, where: str) -> str:
    """Refuse a value that is not text.

    Args:
        value: the value.
        column: its column or field, for the message.
        where: its file and row, for the message.

    Raises:
        DataError: the value is not text.
    """
    if not isinstance(value, str):
        raise DataError(f"{where}: {column} is {shown(value)}, which is not text")
    return value


def _check_column(schema: Any, file: Path, column: str, key: str) -> None:
    """Refuse a file whose column is missing, occurs twice, or is not text."""
    if column not in schema.names:
        raise DataError(
            f"{file} has no column {column!r}{nearest(column, schema.names)}; set {key} to the column of the text"
        )
    if schema.names.count(column) > 1:
        raise DataError(f"{file} has several columns {column!r}; rename all but one of them")
    kind = schema.field(column).type
    kind = kind.value_type if str(kind).startswith("dictionary") else kind
    if str(kind) not in ("string", "large_string", "string_view"):
        raise DataError(
            f"{file}: the values of {column!r} are not text but {shown(str(kind))}; set {key} to the column of the text"
        )
