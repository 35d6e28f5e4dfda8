"""Tables of sentence pairs: TSV, JSON lines and Parquet, in which one column has the sources and one the targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seqgen.core.errors import ConfigError, DataError, nearest, shown
from seqgen.data.parquet import read_column_chunks
from seqgen.data.record_lines import (
    JSON_ENDINGS,
    JsonFormat,
    PlainFormat,
    Records,
    Template,
    TsvFormat,
    first_line,
    is_json,
    read_fields,
    read_header,
    split_columns,
)
from seqgen.data.text import ParallelFiles, find_files

PARQUET = ".parquet"
COLUMN_KEYS = ("task.source_column", "task.target_column")


@dataclass(frozen=True)
class Table(ParallelFiles):
    """Files of a table; each of them is both a source file and a target file.

    Attributes:
        sides: the texts of the sources and those of the targets.
    """

    sides: tuple[Records, Records]

    def lines(self, side: int) -> Iterator[str]:
        """The texts of a column; see ``ParallelFiles.lines``."""
        return self.sides[side].texts()

    def check(self, allow_empty: bool = False) -> None:
        """Check that there is a row, since every row is a pair; see ``ParallelFiles.check``."""
        if not allow_empty and next(self.lines(0), None) is None:
            raise DataError(f"{self.source[0]} has no rows; give a table with at least one")


def is_table(name: str) -> bool:
    """True if a file is a table, according to its name."""
    return name.removesuffix(".gz").endswith((".tsv", PARQUET, *JSON_ENDINGS))


def find_table(pattern: str, columns: tuple[str, str], languages: tuple[str, str], key: str) -> Table:
    """Find a table, and the columns of source and target.

    Args:
        pattern: the name of the file, or one with wildcards; it ends as ``is_table`` demands.
        columns: the name of each column, or its number from 1 in TSV; empty for that of the language, or, in TSV
            without such a column, the first one for sources and the second one for targets.
        languages: source language and target language.
        key: the configuration key that ``pattern`` comes from, for messages.

    Raises:
        DataError: there is no such file, it is empty, or it has no such column.
        ConfigError: both columns are the same.
    """
    files = find_files([pattern], key)
    names = [column or language for column, language in zip(columns, languages, strict=True)]
    if pattern.removesuffix(".gz").endswith(PARQUET):
        readers = [partial(read_column_chunks, column=names[side], key=COLUMN_KEYS[side]) for side in (0, 1)]
        sides = [Records(files, PlainFormat(names[i]), Template.of_field(names[i]), 0, readers[i]) for i in (0, 1)]
    elif is_json(Path(pattern)):
        _check_columns(files[0], names, read_fields(files[0]))
        sides = [Records(files, JsonFormat(tuple(names)), Template.of_field(name)) for name in names]
    else:
        names, known, has_header = _tsv_columns(files, columns, languages)
        _check_columns(files[0], names, known)
        sides = [Records(files, TsvFormat(tuple(known)), Template.of_field(name), int(has_header)) for name in names]
    if names[0] == names[1]:
        raise ConfigError(f"{' and '.join(COLUMN_KEYS)} are both {names[0]!r}; they must differ")
    return Table(files, files, (sides[0], sides[1]))


def _tsv_columns(
    files: list[Path], columns: tuple[str, str], languages: tuple[str, str]
) -> tuple[list[str], list[str], bool]:
    """The names of the two columns and of all columns of TSV, and whether the first line has them.

    Without a header, the columns are named by their numbers.
    """
    first = split_columns(first_line(files[0]))
    numbers = [str(number) for number in range(1, len(first) + 1)]
    defaults = languages if {*languages} & {*first} else ("1", "2")
    names = [column or default for column, default in zip(columns, defaults, strict=True)]
    has_header = not all(name.isdecimal() for name in names)
    known = read_header(files) if has_header else numbers
    by_number = dict(zip(numbers, known, strict=True))
    return [by_number.get(name, name) for name in names], known, has_header


def _check_columns(file: Path, names: list[str], known: list[str]) -> None:
    for name, key in zip(names, COLUMN_KEYS, strict=True):
        if name not in known:
            raise DataError(
                f"{file}, line 1 has no column {name!r}{nearest(name, known)}; the columns are "
                f"{shown(', '.join(known))}; set {key} to one of them"
            )
