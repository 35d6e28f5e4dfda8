"""Target tokens by source tokens, from a file of text or a binary shortlist of Marian (``lex.50.50.ende.s2t.bin``).

The numbers of a binary shortlist are little endian: u64 ``MAGIC``, checksum of what follows, number of frequent target
tokens, number of target tokens of each source token, number ``N`` of offsets, number ``M`` of ids; ``N`` offsets, u64;
``M`` ids of target tokens, u32. Those of source token ``i`` are from offset ``i`` to offset ``i + 1``. Every output
may contain the frequent tokens, which are the first of the vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from seqgen.extend import DataError, Dictionary, open_regular, read_bytes, read_lines, reading_errors, shown

Ids = npt.NDArray[np.int64]
MAGIC = 0xF11A48D5013417F5
_HEADER = 6
_MASK, _GOLDEN_RATIO = 2**64 - 1, 0x9E3779B9


@dataclass(frozen=True)
class VocabularyMap:
    """Target tokens for each source token.

    Attributes:
        targets: ids of target tokens by sequence of source ids; those of the empty sequence belong to every source.
    """

    targets: Mapping[tuple[int, ...], Ids]

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.targets), default=0)

    def of_source(self, source: Sequence[int]) -> list[Ids]:
        """The ids of the target tokens of each sequence that a source contains.

        Args:
            source: its ids.

        Returns:
            Arrays of ids, which may have ids in common.
        """
        longest = range(1, self._longest + 1)
        spans = {tuple(source[i : i + size]) for size in longest for i in range(len(source) - size + 1)}
        return [self.targets[span] for span in ((), *spans) if span in self.targets]

    @classmethod
    def read(cls, path: Path, source: Dictionary, target: Dictionary) -> Self:
        """Read a file: text, or a binary shortlist of Marian.

        Args:
            path: the file.
            source: the source vocabulary.
            target: the target vocabulary.

        Raises:
            DataError: the file cannot be read, a line does not have the format or occurs twice, or a token is not in
                the vocabulary.
        """
        if is_binary_shortlist(path):
            return cls(read_binary_shortlist(path, len(source), len(target)))
        found: dict[tuple[int, ...], Ids] = {}
        for number, line in enumerate(read_lines(path), start=1):
            where = f"{path}, line {number}"
            key, tab, value = line.partition("\t")
            if not tab or "\t" in value:
                raise DataError(
                    f"{where}: {shown(line)} is not SOURCE<tab>TARGET TARGET ...; make the file with "
                    "examples/shortlist.py"
                )
            ids = tuple(_ids(key, source, "source", where))
            if ids in found:
                raise DataError(f"{where}: there is another line for {shown(key)}; remove one of them")
            found[ids] = np.array(_ids(value, target, "target", where), dtype=np.int64)
        if not found:
            raise DataError(f"{path} is empty; make the file with examples/shortlist.py")
        return cls(found)


def _ids(text: str, words: Dictionary, side: str, where: str) -> list[int]:
    tokens = text.split(" ") if text else []
    unknown = [token for token in tokens if token not in words]
    if unknown:
        raise DataError(
            f"{where}: {shown(unknown[0])} is not in the {side} vocabulary of the model; make a file for this model "
            "with examples/shortlist.py"
        )
    return [words.index(token) for token in tokens]


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


def read_binary_shortlist(path: Path, sources: int, targets: int) -> dict[tuple[int, ...], Ids]:
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
    found: dict[tuple[int, ...], Ids] = {(): np.arange(frequent)}
    for token, (start, end) in enumerate(itertools.pairwise(offsets.tolist())):
        found[(token,)] = ids[start:end]
    return found


def _checksum(content: bytes) -> int:
    """Marian's checksum, ``hash_combine`` of Boost over whole u64; up to 7 bytes at the end are not in it."""
    seed = 0
    for number in (np.frombuffer(content, "<u8", len(content) // 8) + np.uint64(_GOLDEN_RATIO)).tolist():
        seed ^= (number + (seed << 6) + (seed >> 2)) & _MASK
    return seed
