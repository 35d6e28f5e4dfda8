"""Sequences of ids on disk, read through a memory map: one flat array, and the position of each sequence in it."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqgen.core.errors import DataError
from seqgen.data.text import CHUNK_BYTES, LineChunk, digest, read_chunks
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.system.files import new_folder
from seqgen.system.processes import compute_ahead, end_with
from seqgen.system.reading import open_regular, parse_json, read_bytes

VALUES, OFFSETS, META = "values.bin", "offsets.bin", "meta.json"
VERSION = 1
"""Number of the format, which is part of the name of a store."""
CHECKSUM_BYTES = 256 << 20
"""Maximum size of a store whose checksums are verified when it is opened. For a larger one only the file sizes are
verified, because reading everything would delay the start too much."""


class DamagedStoreError(DataError):
    """A store on disk is incomplete or altered."""


@dataclass
class StoreMeta:
    """The content of ``meta.json``.

    Attributes:
        dtype: numpy's name for the type of the values.
        files: name and number of lines of each text file that was encoded.
        sequences: number of sequences.
        values: number of values in all sequences together.
        checksums: CRC-32 of each file of the store.
        unknown_values: number of values that are the unknown token.
        unknown_lines: number of lines that contain unknown tokens.
        unknown_examples: index of the first of these lines, from 0.
        skipped: number of lines at the beginning of each file that were not encoded, such as a header.
    """

    dtype: str
    files: list[tuple[str, int]] = field(default_factory=list)
    sequences: int = 0
    values: int = 0
    checksums: dict[str, int] = field(default_factory=dict)
    unknown_values: int = 0
    unknown_lines: int = 0
    unknown_examples: list[int] = field(default_factory=list)
    skipped: int = 0

    @classmethod
    def from_json(cls, content: bytes) -> StoreMeta:
        """Parse the content of ``meta.json``.

        Args:
            content: its bytes.

        Raises:
            DamagedStoreError: the content is damaged.
        """
        try:
            meta = cls(**parse_json(content))
            meta.files = [(str(name), int(lines)) for name, lines in meta.files]
            np.dtype(meta.dtype)
        except (ValueError, TypeError) as error:
            raise DamagedStoreError(f"{META} is damaged: {error}") from None
        return meta


class TokenStore:
    """An encoded text on disk, which may be larger than memory.

    Args:
        folder: the folder of the store.

    Attributes:
        meta: the content of ``meta.json``.
        values: ``(values,)`` all sequences concatenated, of type ``meta.dtype``.
        offsets: ``(sequences + 1,)`` int64; sequence ``i`` is ``values[offsets[i] : offsets[i + 1]]``.

    Raises:
        DamagedStoreError: a file is missing, truncated or altered.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            self.meta = StoreMeta.from_json(read_bytes(folder / META))
            dtype = np.dtype(self.meta.dtype)
            sizes = {VALUES: self.meta.values * dtype.itemsize, OFFSETS: (self.meta.sequences + 1) * 8}
            for name, size in sizes.items():
                with open_regular(folder / name) as file:
                    found = os.fstat(file.fileno()).st_size
                if found != size:
                    raise DamagedStoreError(f"{name} has {found} bytes instead of {size}")
        except OSError as error:
            raise DamagedStoreError(f"{error.filename}: {error.strerror}") from None
        self.values, self.offsets = _map(folder / VALUES, dtype), _map(folder / OFFSETS, np.dtype(np.int64))
        for name, array in ((VALUES, self.values), (OFFSETS, self.offsets)):
            if sum(sizes.values()) <= CHECKSUM_BYTES and zlib.crc32(array.data) != self.meta.checksums.get(name):
                raise DamagedStoreError(f"{name} does not have the checksum that was written")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.values):
            raise DamagedStoreError(f"{OFFSETS} does not match {VALUES}")

    def __len__(self) -> int:
        return self.meta.sequences

    def unknown_note(self, lines: str, values: str, shown: int = 1) -> list[str]:
        """A note with the number of unknown values and examples; an empty list if there are none.

        Args:
            lines: what a line is, such as "lines of train".
            values: what a value is, such as "words".
            shown: number of examples.
        """
        meta = self.meta
        if not meta.unknown_lines:
            return []
        examples = listed([self.where(index) for index in meta.unknown_examples[:shown]], meta.unknown_lines)
        return [
            f"{meta.unknown_lines} {lines} have {meta.unknown_values} {values} that are not in the vocabulary: "
            f"{examples}."
        ]

    def __getitem__(self, index: int) -> NDArray[Any]:
        """The values of a sequence, as a view of the memory map."""
        if not 0 <= index < len(self):
            raise IndexError(f"there is no sequence {index}; the store has {len(self)}")
        view: NDArray[Any] = self.values[self.offsets[index] : self.offsets[index + 1]]
        return view

    def lengths(self) -> NDArray[np.int32]:
        """``(sequences,)`` int32 number of values in each sequence."""
        return np.diff(self.offsets).astype(np.int32)

    def where(self, index: int) -> str:
        """The file and line that a sequence comes from, such as ``"train.en, line 17"``.

        Args:
            index: index of the sequence, from 0.
        """
        for name, lines in self.meta.files:
            if index < lines:
                return f"{name}, line {index + 1 + self.meta.skipped}"
            index -= lines
        raise IndexError(f"the index is {index} after the last sequence")


def listed(examples: Sequence[str], count: int) -> str:
    """Examples in a note, with dots at the end if there are more.

    Args:
        examples: the first ones.
        count: number of all.
    """
    return "; ".join([*examples, *["..."] * (count > len(examples))])


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    # An empty file cannot be mapped. The plain view is several times faster to slice than a numpy.memmap.
    return np.memmap(path, dtype, "r").view(np.ndarray) if path.stat().st_size else np.empty(0, dtype)


MAX_EXAMPLES = 10
"""Number of lines with unknown tokens that a store records."""
PARALLEL_CHUNKS = 8
"""A text of fewer chunks is encoded without worker processes, since starting them would take longer."""


@dataclass
class TokenEncoder:
    """Encodes lines as a tokenizer's ids, without end-of-sentence; it is sent to worker processes.

    Attributes:
        tokenizer: the tokenizer.
    """

    tokenizer: Tokenizer

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smaller of uint16 and uint32 that can represent all ids."""
        return np.dtype(np.uint16 if len(self.tokenizer.dictionary) <= 1 << 16 else np.uint32)

    def fingerprint(self) -> str:
        """A string of everything that ``encode`` depends on."""
        return self.tokenizer.fingerprint()

    def encode(self, chunk: LineChunk) -> list[list[int]]:
        """The ids of each line.

        Args:
            chunk: the lines.

        Raises:
            DataError: a line cannot be read; the message names it.
        """
        return self.tokenizer.encode_lines(chunk.decode())


_Encoded: TypeAlias = tuple[int, NDArray[Any], NDArray[np.int64], NDArray[np.int64]]
"""The index of a file, and of a chunk of its lines: flat values, the length of each line, and the index of the line of
each unknown token."""


def _encode(encoder: TokenEncoder, file: int, chunk: LineChunk) -> _Encoded:
    rows = encoder.encode(chunk)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    values = np.fromiter(chain.from_iterable(rows), encoder.dtype, int(lengths.sum()))
    unknown = np.flatnonzero(values == encoder.tokenizer.dictionary.unk())
    return file, values, lengths, np.searchsorted(np.cumsum(lengths), unknown, side="right")


_encoder: TokenEncoder | None = None


def _begin_worker(encoder: TokenEncoder, parent: int) -> None:
    global _encoder  # noqa: PLW0603  # sent once to each worker process, not with every chunk
    _encoder = encoder
    # The parent handles signals and stops its workers. In case it is killed, each worker watches for the parent's end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with(parent)


def _encode_in_worker(file_and_chunk: tuple[int, LineChunk]) -> _Encoded:
    assert _encoder is not None
    return _encode(_encoder, *file_and_chunk)


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Reader = Callable[[Path, int], Iterator[LineChunk]]
"""Reads a file in chunks of about this many bytes, such as ``read_chunks``."""


def _encode_all(
    files: Sequence[Path], encoder: TokenEncoder, workers: int, chunk_bytes: int, skip_lines: int, read: Reader
) -> Iterator[_Encoded]:
    """Encode files chunk by chunk, in order of the text."""
    chunks = ((i, chunk.after(skip_lines)) for i, path in enumerate(files) for chunk in read(path, chunk_bytes))
    if workers <= 1 or sum(path.stat().st_size for path in files) < PARALLEL_CHUNKS * chunk_bytes:
        yield from (_encode(encoder, i, chunk) for i, chunk in chunks)
        return
    # Forking is fast and needs no importable main module; it is safe because the workers use neither torch nor a GPU.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(encoder, os.getpid()))
    try:
        yield from compute_ahead(pool, _encode_in_worker, chunks, 2 * workers)
    except BrokenProcessPool:
        raise DataError(
            "a process that encodes text was killed, perhaps because memory ran out; use fewer workers (task.workers=1)"
        ) from None


def _write(folder: Path, meta: StoreMeta, chunks: Iterable[_Encoded]) -> None:
    """Write a store's files chunk by chunk, and what they contain into ``meta``."""

    def append(file: IO[bytes], name: str, array: NDArray[Any]) -> None:
        content = array.tobytes()
        meta.checksums[name] = zlib.crc32(content, meta.checksums.get(name, 0))
        file.write(content)

    with open(folder / VALUES, "wb") as values_file, open(folder / OFFSETS, "wb") as offsets_file:
        append(values_file, VALUES, np.empty(0, meta.dtype))
        append(offsets_file, OFFSETS, np.zeros(1, np.int64))
        for file, values, lengths, unknown in chunks:
            append(values_file, VALUES, values)
            append(offsets_file, OFFSETS, meta.values + np.cumsum(lengths))
            lines = np.unique(unknown)
            room = MAX_EXAMPLES - len(meta.unknown_examples)
            meta.unknown_examples += (lines[:room] + meta.sequences).tolist()
            meta.unknown_values += len(unknown)
            meta.unknown_lines += len(lines)
            meta.values += len(values)
            meta.sequences += len(lengths)
            name, count = meta.files[file]
            meta.files[file] = name, count + len(lengths)
    (folder / META).write_text(json.dumps(asdict(meta), indent=2))


def build_store(
    cache: Path,
    label: str,
    files: Sequence[Path],
    encoder: TokenEncoder,
    *,
    workers: int = 1,
    chunk_bytes: int = CHUNK_BYTES,
    skip_lines: int = 0,
    read: Reader = read_chunks,
) -> TokenStore:
    """Open the store of text files; if it does not exist, encode the files first.

    The store's name contains a hash of the files' bytes and the encoder's fingerprint. So another text or another
    tokenizer has another store, and a file that is moved or touched has the same one. A damaged store is built again.

    Args:
        cache: folder of the stores.
        label: beginning of the store's name, for readers of the folder.
        files: the text files, encoded one after the other.
        encoder: turns lines into values.
        workers: number of processes that encode; 0 for one per core. The result does not depend on it.
        chunk_bytes: approximate size of the chunks that a worker encodes at a time, in bytes.
        skip_lines: number of lines at the beginning of each file that are left out, such as a header.
        read: reads a file in chunks of about so many bytes; what it reads depends only on file and encoder.

    Returns:
        The store, with one sequence for each line.

    Raises:
        DataError: a file is missing, empty, damaged or not UTF-8, or the store cannot be written.
    """
    key = [VERSION, digest(files), encoder.fingerprint()]
    content = json.dumps([*key, skip_lines] if skip_lines else key)
    folder = cache / f"{label}-{hashlib.sha256(content.encode()).hexdigest()[:24]}"
    if folder.is_dir():
        try:
            return TokenStore(folder)
        except DamagedStoreError:
            shutil.rmtree(folder, ignore_errors=True)
    with new_folder(folder) as temporary:
        meta = StoreMeta(encoder.dtype.name, [(path.name, 0) for path in files], skipped=skip_lines)
        encoded = _encode_all(files, encoder, workers or available_cores(), chunk_bytes, skip_lines, read)
        _write(temporary, meta, encoded)
        for path, (_, lines) in zip(files, meta.files, strict=True):
            if lines == 0:
                what = "has no lines after its header" if skip_lines else "is empty"
                raise DataError(f"{path} {what}; give a file with at least one line")
    try:
        return TokenStore(folder)
    except DamagedStoreError as error:
        raise DataError(f"{folder} was written but cannot be read back ({error}); is the disk full?") from None
