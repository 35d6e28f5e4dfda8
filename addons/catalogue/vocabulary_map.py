"""Target tokens by source tokens, from a file of text or a binary shortlist of Marian."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from seqgen.addons.catalogue.binary_shortlist import is_binary_shortlist, read_binary_shortlist
from seqgen.extend import DataError, Dictionary, read_lines, shown

Ids = npt.NDArray[np.int64]


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
    if unknown := next((token for token in tokens if token not in words), None):
        raise DataError(
            f"{where}: {shown(unknown)} is not in the {side} vocabulary of the model; make a file for this model with "
            "examples/shortlist.py"
        )
    if "" in tokens:
        raise DataError(f"{where}: there must be exactly one space between two tokens; remove the others")
    return [words.index(token) for token in tokens]
