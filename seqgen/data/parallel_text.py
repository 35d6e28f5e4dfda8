"""Files of sentences and their translations, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seqgen.data.text import count_lines, expand
from seqgen.errors import DataError, nearest


@dataclass(frozen=True)
class ParallelFiles:
    """Source files and the target files that belong to them, in the same order.

    Attributes:
        source: the source files.
        target: as many target files; ``None`` where there are none.
    """

    source: list[Path]
    target: list[Path] | None

    def check(self, allow_empty: bool = False) -> None:
        """Read all files once, in constant memory, and check that they can be used.

        Args:
            allow_empty: whether a file may have no line: there is nothing to learn from it, but it can be decoded.

        Raises:
            DataError: a file is empty, damaged or not UTF-8, or a source and its target have unequal numbers of lines.
        """
        counts = {path: count_lines(path) for path in [*self.source, *(self.target or [])]}
        for path, count in counts.items():
            if count == 0 and not allow_empty:
                raise DataError(f"{path} is empty; give a file with at least one line")
        if self.target is not None:
            self.compare([counts[path] for path in self.source], [counts[path] for path in self.target])

    def compare(self, source_counts: list[int], target_counts: list[int]) -> None:
        """Compare the numbers of lines.

        Args:
            source_counts: lines of each source file.
            target_counts: lines of each target file.

        Raises:
            DataError: they differ.
        """
        for source, target, m, n in zip(self.source, self.target or [], source_counts, target_counts, strict=True):
            if m != n:
                raise DataError(
                    f"{source} has {m} lines but {target} has {n}; line n of the one must be the translation "
                    "of line n of the other (only \\n ends a line)"
                )


def find_parallel(
    prefix: str, source_lang: str, target_lang: str, *, key: str, optional_target: bool = False
) -> ParallelFiles:
    """Find ``PREFIX.SRC`` and ``PREFIX.TGT``, each plain or with ``.gz``.

    Args:
        prefix: path without the language; with wildcards it may match several pairs.
        source_lang: ending of the source files.
        target_lang: ending of the target files.
        key: the configuration key that ``prefix`` comes from, for messages.
        optional_target: whether there may be no target files at all.

    Returns:
        The files, pairs in the order of their names.

    Raises:
        DataError: there are none, or a file's partner is missing.
    """
    sources = expand(prefix, f".{source_lang}")
    targets = expand(prefix, f".{target_lang}")
    if not sources:
        raise _missing(prefix, source_lang, key)
    if not targets:
        if optional_target:
            return ParallelFiles(list(sources.values()), None)
        raise _missing(prefix, target_lang, key)
    if alone := sources.keys() ^ targets.keys():
        stem = min(alone)
        have, lack = (source_lang, target_lang) if stem in sources else (target_lang, source_lang)
        raise DataError(f"{key}={prefix}: there is {stem}.{have} but neither {stem}.{lack} nor {stem}.{lack}.gz")
    return ParallelFiles(list(sources.values()), list(targets.values()))


def _missing(prefix: str, lang: str, key: str) -> DataError:
    folder = Path(prefix).parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    hint = nearest(f"{Path(prefix).name}.{lang}", names) if names else f" (there is no folder {folder})"
    return DataError(f"{key}={prefix}: there is neither {prefix}.{lang} nor {prefix}.{lang}.gz{hint}")
