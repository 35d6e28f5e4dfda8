"""Marian's binary lexical shortlists, such as ``lex.50.50.ende.s2t.bin``.

All numbers are little endian: u64 ``MAGIC``, checksum of what follows, number of frequent target tokens, number of
target tokens of each source token, number ``N`` of offsets, number ``M`` of ids; ``N`` offsets, u64; ``M`` ids of
target tokens, u32. Those of source token ``i`` are from offset ``i`` to offset ``i + 1``. Every output may contain the
frequent tokens, which are the first of the vocabulary.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqgen.extend import DataError, open_regular, read_bytes, reading_errors

MAGIC = 0xF11A48D5013417F5
_HEADER = 6
_MASK, _GOLDEN_RATIO = 2**64 - 1, 0x9E3779B9


def is_binary_shortlist(path: Path) -> bool:
    """True if a file begins like a binary shortlist.

    Raises:
        DataError: it cannot be read, or is another binary file.
    """
    with reading_errors(path, DataError), open_regular(path) as file:
        head = file.read(512)
    if not (found := head.startswith(MAGIC.to_bytes(8, "little"))) and min(head, default=9) < 9:  # control characters
        raise DataError(f"{path} is not a shortlist; give a lex.*.bin of Marian, or text of examples/shortlist.py")
    return found


def read_binary_shortlist(path: Path, sources: int, targets: int) -> dict[tuple[int, ...], npt.NDArray[np.int64]]:
    """Read a shortlist.

    Args:
        path: the file.
        sources: size of the source vocabulary.
        targets: size of the target vocabulary.

    Returns:
        See ``VocabularyMap.targets``.

    Raises:
        DataError: the file cannot be read, is damaged, or does not belong to the vocabularies.
    """
    with reading_errors(path, DataError):
        content = read_bytes(path)
    header = np.frombuffer(content[: 8 * _HEADER], "<u8").tolist() if len(content) >= 8 * _HEADER else []
    if not header or len(content) != 8 * (_HEADER + header[4]) + 4 * header[5]:
        raise DataError(f"{path} is damaged: its size is not the one that its header describes; copy it again")
    if header[1] != _checksum(content[16:]):
        raise DataError(f"{path} is damaged: its checksum differs from the one in its header; copy it again")
    frequent, offsets = header[2], np.frombuffer(content, "<u8", header[4], 8 * _HEADER)
    ids = np.frombuffer(content, "<u4", header[5], 8 * (_HEADER + header[4])).astype(np.int64)
    if (offsets[1:] < offsets[:-1]).any() or (offsets > len(ids)).any():
        raise DataError(f"{path} is damaged: its offsets are not in ascending order up to {len(ids)}; copy it again")
    if len(offsets) > sources + 1 or max(frequent, ids.max(initial=-1) + 1) > targets:
        raise DataError(
            f"{path} does not belong to the model: it has other source tokens than the {sources} of its vocabulary, or "
            f"other target tokens than the {targets}"
        )
    found: dict[tuple[int, ...], npt.NDArray[np.int64]] = {(): np.arange(frequent)}
    for token, (start, end) in enumerate(itertools.pairwise(offsets.tolist())):
        found[(token,)] = ids[start:end]
    return found


def _checksum(content: bytes) -> int:
    """Marian's checksum, ``hash_combine`` of Boost over whole u64; up to 7 bytes at the end are not in it."""
    seed = 0
    for number in (np.frombuffer(content, "<u8", len(content) // 8) + np.uint64(_GOLDEN_RATIO)).tolist():
        seed ^= (number + (seed << 6) + (seed >> 2)) & _MASK
    return seed
