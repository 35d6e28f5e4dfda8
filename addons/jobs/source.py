"""The input of a job: the lines of text, JSON lines and Parquet files, in order and in constant memory, and its parts.

A part has consecutive lines of the input, and is found again by the hash of their text.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from seqgen.extend import DataError, JsonFormat, find_files, library_errors, read_chunks, read_column

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""The format of a file by the end of its name, before ``.gz``; all other files are text."""


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
            return read_column(file, self.column, "job.column")
        if kind == "jsonl":
            return self._records(file)
        return (line for chunk in read_chunks(file) for line in chunk.decode())

    def _records(self, file: Path) -> Iterator[str]:
        for chunk in read_chunks(file):
            for number, line in enumerate(chunk.decode(), start=chunk.first):
                with library_errors(f"{file}, line {number}, job.column={self.column}"):
                    if line.strip():
                        yield JsonFormat((self.column,)).read(line)[self.column]


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
    named = Path(pattern)
    if named.is_dir():
        files = sorted(path for path in named.iterdir() if path.is_file() and not path.name.startswith("."))
        if not files:
            raise DataError(f"input={pattern}: the folder has no files")
    else:
        files = [named] if named.exists() else find_files([pattern], "input")
    return Source(tuple(files), file_format, column)


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
