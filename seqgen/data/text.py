"""Text files, read line by line in constant memory, and parallel ones; only ``\n`` ends a line.

Python's text mode and ``str.splitlines`` also split at ``\r``, U+0085, U+2028 and other characters. These occur inside
sentences, so that all following lines would be paired with the wrong translation. Therefore files are read as bytes.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from seqgen.core.errors import DataError
from seqgen.system.error_messages import library_errors, reading_errors
from seqgen.system.reading import open_regular, similar_path

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

CHUNK_BYTES = 1 << 20
"""Approximate number of bytes of text that are read at a time."""
NPY = ".npy"
MAX_LINE_BYTES = 1 << 26
"""Maximum bytes of a line; a small ``.gz`` file can contain a line of many gigabytes."""


@dataclass(frozen=True)
class LineChunk:
    """Consecutive lines of a file, as bytes without their ``\\n``.

    Attributes:
        path: the file.
        first: number of the first line, from 1.
        lines: the lines.
    """

    path: Path
    first: int
    lines: list[bytes]

    def after(self, line: int) -> LineChunk:
        """The lines after a given one.

        Args:
            line: its number in the file, from 1.
        """
        skipped = max(0, line + 1 - self.first)
        return LineChunk(self.path, self.first + skipped, self.lines[skipped:]) if skipped else self

    def decode(self) -> list[str]:
        """The lines as text.

        Raises:
            DataError: a line is not valid UTF-8.
        """
        return [decode_line(line, self.path, number) for number, line in enumerate(self.lines, self.first)]


def decode_line(line: bytes, path: Path | str, number: int) -> str:
    """Decode a line of a file.

    Args:
        line: the bytes, without the ``\\n``.
        path: the file, for the message.
        number: the line's number from 1, for the message.

    Returns:
        The text.

    Raises:
        DataError: the line is not valid UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        is_gzip = number == 1 and line.startswith(b"\x1f\x8b")
        advice = "give a gzip file a name that ends in .gz" if is_gzip else "convert the file to UTF-8 if it is text"
        where = f"{path}, line {number}: byte {error.start + 1} (0x{line[error.start]:02x})"
        raise DataError(f"{where} is not valid UTF-8; {advice}") from None


def _open(path: Path, pipes: bool) -> IO[bytes]:
    file = open(path, "rb") if pipes else open_regular(path)  # noqa: SIM115  # the caller closes it
    # GzipFile behaves as a binary file, but its declared type differs
    return gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file  # type: ignore[return-value]


def read_chunks(path: Path, chunk_bytes: int = CHUNK_BYTES, pipes: bool = False) -> Iterator[LineChunk]:
    """Read a file in chunks of lines; it is decompressed if its name ends in ``.gz``.

    A byte-order mark at the beginning of the file is left out.

    Args:
        path: the file.
        chunk_bytes: approximate number of bytes to read at a time.
        pipes: whether the file may be a pipe or device, reading from which can block.

    Yields:
        The chunks, in order.

    Raises:
        DataError: the file is missing, cannot be read, is a damaged gzip file, or has a line that is too long.
    """
    number = 1
    try:
        with _open(path, pipes) as file:
            while content := file.read(chunk_bytes):
                if not content.endswith(b"\n"):
                    content += file.readline(MAX_LINE_BYTES)  # of a line that is too long only a part
                lines = content.removesuffix(b"\n").split(b"\n")
                if number == 1:
                    lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
                number += len(lines)
                _check_length(lines[-1], path, number - 1)
                yield LineChunk(path, number - len(lines), lines)
    except FileNotFoundError:
        compressed = path.with_name(f"{path.name}.gz")
        advice = f"; give {compressed}" if compressed.exists() else similar_path(path)
        raise DataError(f"there is no file {path}{advice}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged after line {number - 1}: {error}; copy or compress it again") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def chunks_of(path: Path, texts: Iterable[str], chunk_bytes: int) -> Iterator[LineChunk]:
    """The texts of another file than plain text, as ``read_chunks`` reads lines.

    Args:
        path: the file.
        texts: its texts.
        chunk_bytes: approximate number of bytes in a chunk.

    Yields:
        The chunks, in which a text is a line.
    """
    first, size, lines = 1, 0, list[bytes]()
    for text in texts:
        lines.append(text.encode())
        size += len(lines[-1])
        if size >= chunk_bytes:
            yield LineChunk(path, first, lines)
            first, size, lines = first + len(lines), 0, []
    if lines:
        yield LineChunk(path, first, lines)


def _check_length(line: bytes, path: Path | str, number: int) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise DataError(
            f"{path}, line {number} has more than {MAX_LINE_BYTES} bytes, the maximum for a line; is the file text?"
        )


def read_lines(paths: Path | Sequence[Path], pipes: bool = False) -> Iterator[str]:
    """Read the lines of one or several files as text.

    Args:
        paths: a file, or files that are read one after the other.
        pipes: whether they may be pipes or devices, as for files that a user names on the command line.

    Yields:
        The lines, without their ``\\n``.

    Raises:
        DataError: a file cannot be read, or a line is not valid UTF-8.
    """
    for path in [paths] if isinstance(paths, Path) else paths:
        for chunk in read_chunks(path, pipes=pipes):
            yield from chunk.decode()


class ByteLines(Protocol):
    """A stream of lines of bytes, such as standard input."""

    def readline(self, limit: int, /) -> bytes:
        """The next line, cut after ``limit`` bytes; empty at the end."""


def stream_lines(stream: ByteLines, name: str) -> Iterator[str]:
    """Read the lines of a stream as text, as ``read_lines`` reads those of a file.

    Args:
        stream: the stream, such as that of standard input.
        name: name of the stream, for messages.

    Yields:
        The lines, without their ``\\n`` and without a byte-order mark at the beginning.

    Raises:
        DataError: a line is not valid UTF-8, or is too long.
    """
    number = 1
    while line := stream.readline(MAX_LINE_BYTES + 1):
        content = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).removesuffix(b"\n")
        _check_length(content, name, number)
        yield decode_line(content, name, number)
        number += 1


def is_pipe(path: Path) -> bool:
    """True if a path is a pipe or device, which can be read only once."""
    return path.exists() and not path.is_file() and not path.is_dir()


def open_array(path: Path) -> Any:
    """Map the array of a ``.npy`` file, ``(rows, ...)``, into memory.

    Args:
        path: the file.

    Raises:
        DataError: the file cannot be read, or has a single number.
    """
    with library_errors(f"{path} is not a .npy file with rows of numbers"):
        return np.lib.format.open_memmap(path, mode="c").view(np.ndarray)[:]


def count_lines(path: Path) -> int:
    """Count the lines of a file and check that they are valid UTF-8.

    Args:
        path: the file, plain or ``.gz``, or ``.npy``, of which a row is a line.

    Returns:
        Number of lines.

    Raises:
        DataError: the file cannot be read, or a line is not valid UTF-8.
    """
    return len(open_array(path)) if path.suffix == NPY else sum(len(chunk.decode()) for chunk in read_chunks(path))


def digest(paths: Sequence[Path]) -> str:
    """Hash the bytes of files; ``.gz`` files are not decompressed.

    Args:
        paths: the files, whose order matters.

    Returns:
        A hexadecimal SHA-256.

    Raises:
        DataError: a file cannot be read.
    """
    total = hashlib.sha256()
    for path in paths:
        with reading_errors(path, DataError), open_regular(path) as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def expand(pattern: str, ending: str = "") -> dict[str, Path]:
    """Find the files that match a name with optional wildcards, each plain or with ``.gz``.

    A file with exactly this name takes precedence, so that ``corpus[1].en`` can be named although it looks like a
    wildcard.

    Args:
        pattern: a path, or one with ``*``, ``?``, ``[...]`` or ``**``.
        ending: the end of each file's name, before ``.gz``; it is not part of ``pattern``, and wildcards in it do not
            count.

    Returns:
        Each file by its name without ``ending`` and ``.gz``, sorted by name; empty if no file matches. If a file exists
        both plain and compressed, the plain one is used.
    """
    for literal in (Path(pattern + ending), Path(pattern + ending + ".gz")):
        if literal.is_file():
            return {pattern: literal}
    names = {
        name for suffix in ("", ".gz") for name in glob.glob(pattern + glob.escape(ending + suffix), recursive=True)
    }
    found: dict[str, Path] = {}
    for name in sorted(names, key=lambda name: name.endswith(".gz")):
        if Path(name).is_file():
            found.setdefault(name.removesuffix(".gz").removesuffix(ending), Path(name))
    return dict(sorted(found.items()))


def find_files(patterns: Sequence[str], key: str) -> list[Path]:
    """Find files by names with optional wildcards; see ``expand``.

    Args:
        patterns: the names.
        key: the configuration key that they come from, for messages.

    Returns:
        Each file once, in the order of the patterns.

    Raises:
        DataError: a pattern matches no file.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        paths = expand(pattern).values()
        if not paths:
            raise DataError(f"{key}={pattern}: there is no such file, plain or with .gz{similar_path(Path(pattern))}")
        found |= dict.fromkeys(paths)
    return list(found)


@dataclass(frozen=True)
class ParallelFiles:
    """Pairs of source files and target files.

    Attributes:
        source: the source files.
        target: the target file of each source file, in the same order; ``None`` for sources alone.
        columns: likewise the files of each further column by its name, which may be ``.npy``.
    """

    source: list[Path]
    target: list[Path] | None
    columns: Mapping[str, list[Path]] = field(default_factory=dict)

    def of(self, side: int | str) -> list[Path]:
        """The files of a side: 0 for the source, 1 for the target, or the name of a column."""
        return self.columns[side] if isinstance(side, str) else (self.target or [] if side else self.source)

    def all(self) -> list[Path]:
        """All files, each once."""
        return list(dict.fromkeys(chain(self.source, self.target or (), *self.columns.values())))

    def lines(self, side: int | str) -> Iterator[Any]:
        """The lines of a side, see ``of``; of a ``.npy`` file its rows."""
        files = self.of(side)
        return chain.from_iterable(open_array(path) if path.suffix == NPY else read_lines(path) for path in files)

    def check(self, allow_empty: bool = False) -> None:
        """Read all files, in constant memory, and check that they can be used.

        Args:
            allow_empty: whether files may be empty, as for decoding; training needs at least one line.

        Raises:
            DataError: a file is empty, damaged or not UTF-8, or a source and its target have unequal numbers of lines.
        """
        counts = {path: count_lines(path) for path in self.all()}
        for path, count in counts.items():
            if count == 0 and not allow_empty:
                raise DataError(f"{path} is empty; give a file with at least one line")
        sides: list[Any] = [*[1] * (self.target is not None), *self.columns]
        for side in sides:
            self.compare([counts[path] for path in self.source], [counts[path] for path in self.of(side)], side)

    def compare(self, source_counts: list[int], counts: list[int], side: int | str = 1) -> None:
        """Check that each source file has as many lines as the corresponding file of another side.

        Args:
            source_counts: number of lines of each source file.
            counts: number of lines of each file of the other side.
            side: the other side, see ``of``.

        Raises:
            DataError: the numbers of a pair differ.
        """
        for source, other, m, n in zip(self.source, self.of(side), source_counts, counts, strict=True):
            if m != n:
                raise DataError(
                    f"{source} has {m} lines but {other} has {n}; each line must belong to the line with the same "
                    "number in the other file (only \\n ends a line)"
                )


def find_parallel(
    prefix: str, source_lang: str, target_lang: str, *, key: str, optional: bool = False, names: Iterable[str] = ()
) -> ParallelFiles:
    """Find ``PREFIX.SRC`` and ``PREFIX.TGT``, each plain or with ``.gz``, and ``PREFIX.COLUMN``.

    Args:
        prefix: path without the language; with wildcards it can match several pairs.
        source_lang: file name ending of the source files.
        target_lang: file name ending of the target files.
        key: the configuration key that ``prefix`` comes from, for messages.
        optional: whether target files may be missing for all source files.
        names: the names of further columns.

    Returns:
        The files, sorted by name.

    Raises:
        DataError: there are no files, or one file of a pair is missing.
    """
    sources = expand(prefix, f".{source_lang}")
    targets = expand(prefix, f".{target_lang}")
    if not sources or (not targets and not optional):
        raise _missing(prefix, target_lang if sources else source_lang, key, (source_lang, target_lang))
    found = {name: find_column(prefix, name) for name in names}
    if lacking := [f"{stem}.{name}" for name in found for stem in sources if stem not in found[name]]:
        raise DataError(f"{key}={prefix}: there is neither {lacking[0]} nor {lacking[0]}{NPY} for task.columns")
    of_columns = {name: [files[stem] for stem in sources] for name, files in found.items()}
    if not targets:
        return ParallelFiles(list(sources.values()), None, of_columns)
    if alone := sources.keys() ^ targets.keys():
        stem = min(alone)
        have, lack = (source_lang, target_lang) if stem in sources else (target_lang, source_lang)
        raise DataError(f"{key}={prefix}: there is {stem}.{have} but neither {stem}.{lack} nor {stem}.{lack}.gz")
    return ParallelFiles(list(sources.values()), list(targets.values()), of_columns)


def find_column(prefix: str, name: str) -> dict[str, Path]:
    """The files of a column, ``PREFIX.NAME`` or ``PREFIX.NAME.npy``, by their names without this ending."""
    return expand(prefix, f".{name}{NPY}") | expand(prefix, f".{name}")


def _missing(prefix: str, lang: str, key: str, languages: tuple[str, str]) -> DataError:
    plain, hint = prefix.removesuffix(".gz"), similar_path(Path(f"{prefix}.{lang}"))
    if Path(prefix).is_file():
        table = "a table (.tsv, .jsonl, .parquet or .tmx, but not .csv)"
        hint = f"; {prefix} is a single file: pairs in a single file must be {table}, for task=translation"
    for language in languages:
        if plain.endswith(f".{language}"):
            hint = f"; remove the language: {key}={plain.removesuffix(f'.{language}')}"
    return DataError(f"{key}={prefix}: there is neither {prefix}.{lang} nor {prefix}.{lang}.gz{hint}")
