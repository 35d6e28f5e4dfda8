"""Sequences of ids on disk, read through a memory map: one flat array, and the position of each sequence in it."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqgen.system.reading import open_regular, parse_json, read_bytes

VALUES, OFFSETS, META = "values.bin", "offsets.bin", "meta.json"
VERSION = 1
CHECKSUM_BYTES = 256 << 20
"""Maximum size of a store whose checksums are verified when it is opened. For a larger one only the file sizes are
verified, because reading everything would delay the start too much."""


class DamagedStoreError(Exception):
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
        version: number of this format.
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
    version: int = VERSION

    def to_json(self) -> bytes:
        """The content of ``meta.json``."""
        return json.dumps(asdict(self), indent=2).encode()

    @classmethod
    def from_json(cls, content: bytes) -> StoreMeta:
        """Parse the content of ``meta.json``.

        Args:
            content: what ``to_json`` returned.

        Raises:
            DamagedStoreError: the content is damaged, or has another format.
        """
        try:
            meta = cls(**parse_json(content))
            meta.files = [(str(name), int(lines)) for name, lines in meta.files]
            np.dtype(meta.dtype)
        except (ValueError, TypeError) as error:
            raise DamagedStoreError(f"{META} is damaged: {error}") from None
        if meta.version != VERSION:
            raise DamagedStoreError(f"it has format {meta.version}, not {VERSION}")
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
            self._verify()
        except OSError as error:
            raise DamagedStoreError(f"{error.filename}: {error.strerror}") from None
        self.values = _map(folder / VALUES, np.dtype(self.meta.dtype))
        self.offsets = _map(folder / OFFSETS, np.dtype(np.int64))
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.values):
            raise DamagedStoreError(f"{OFFSETS} does not match {VALUES}")

    def _verify(self) -> None:
        sizes = {VALUES: self.meta.values * np.dtype(self.meta.dtype).itemsize, OFFSETS: (self.meta.sequences + 1) * 8}
        for name, size in sizes.items():
            with open_regular(self.folder / name) as file:
                found = os.fstat(file.fileno()).st_size
            if found != size:
                raise DamagedStoreError(f"{name} has {found} bytes instead of {size}")
        if sum(sizes.values()) <= CHECKSUM_BYTES:
            for name in sizes:
                if _crc32(self.folder / name) != self.meta.checksums.get(name):
                    raise DamagedStoreError(f"{name} does not have the checksum that was written")

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


def _crc32(path: Path) -> int:
    checksum = 0
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum
