"""Vocabulary maps: the target tokens that are likely translations of each source token, as a text file.

The format is that of OpenNMT and CTranslate2 (``vmap.txt``). A line has a source token, a tab and target tokens with
spaces between them. A line that begins with the tab has tokens that every output may contain. A sequence of source
tokens, with spaces between them, counts where a source contains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from seqgen.data.dictionary import Dictionary
from seqgen.data.text import read_lines
from seqgen.errors import DataError, shown
from seqgen.system.files import write_atomically

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class VocabularyMap:
    """Target tokens by source tokens.

    Attributes:
        targets: ids of target tokens by sequence of source ids; those of the empty sequence belong to every source.
    """

    targets: Mapping[tuple[int, ...], Ids]

    def of_source(self, source: Sequence[int]) -> list[Ids]:
        """The ids of the target tokens of each sequence that a source contains.

        Args:
            source: its ids.

        Returns:
            Arrays of ids, which may have ids in common.
        """
        longest = max(map(len, self.targets), default=0)
        spans = {tuple(source[i : i + size]) for size in range(1, longest + 1) for i in range(len(source) - size + 1)}
        return [self.targets[span] for span in ((), *spans) if span in self.targets]

    @classmethod
    def read(cls, path: Path, source: Dictionary, target: Dictionary) -> Self:
        """Read a file.

        Args:
            path: the file.
            source: the source vocabulary.
            target: the target vocabulary.

        Raises:
            DataError: the file cannot be read, a line does not have the format or occurs twice, or a token is not in
                the vocabulary.
        """
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

    def write(self, path: Path, source: Dictionary, target: Dictionary) -> int:
        """Write a file.

        Args:
            path: the file.
            source: the source vocabulary.
            target: the target vocabulary.

        Returns:
            The number of tokens that are left out because they contain white space, which separates tokens.
        """
        left_out: set[tuple[str, str]] = set()

        def tokens(ids: Sequence[int], words: Dictionary, side: str) -> list[str]:
            symbols = [words.symbol(index) for index in ids]
            left_out.update((side, symbol) for symbol in symbols if not _is_writable(symbol))
            return [symbol for symbol in symbols if _is_writable(symbol)]

        lines = []
        for key, ids in self.targets.items():
            left = tokens(key, source, "source")
            right = tokens(ids.tolist(), target, "target")
            if len(left) == len(key):
                lines.append(f"{' '.join(left)}\t{' '.join(right)}\n")
        write_atomically(path, "".join(lines))
        return len(left_out)


def _ids(text: str, words: Dictionary, side: str, where: str) -> list[int]:
    tokens = text.split(" ") if text else []
    if unknown := next((token for token in tokens if token not in words), None):
        raise DataError(
            f"{where}: {shown(unknown)} is not in the {side} vocabulary of the model; make a file for this model with "
            "examples/shortlist.py"
        )
    if "" in tokens:
        raise DataError(f"{where}: there must be exactly one space between two tokens; remove the others")
    return [words.index(token) for token in tokens]


def _is_writable(symbol: str) -> bool:
    return bool(symbol) and not any(mark in symbol for mark in " \t\n")
