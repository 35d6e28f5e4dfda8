"""Parallel text: files whose lines are translations of each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seqgen.data.text import count_lines, expand
from seqgen.errors import DataError, nearest


@dataclass(frozen=True)
class ParallelFiles:
    """Pairs of source files and target files.

    Attributes:
        source: the source files.
        target: the target file of each source file, in the same order; ``None`` for sources alone.
    """

    source: list[Path]
    target: list[Path] | None

    def check(self, allow_empty: bool = False) -> None:
        """Read all files, in constant memory, and check that they can be used.

        Args:
            allow_empty: whether files may be empty, as for decoding; training needs at least one line.

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
        """Check that each source file has as many lines as its target file.

        Args:
            source_counts: number of lines of each source file.
            target_counts: number of lines of each target file.

        Raises:
            DataError: the numbers of a pair differ.
        """
        for source, target, m, n in zip(self.source, self.target or [], source_counts, target_counts, strict=True):
            if m != n:
                raise DataError(
                    f"{source} has {m} lines but {target} has {n}; each line must be the translation of the line with "
                    "the same number in the other file (only \\n ends a line)"
                )


def find_parallel(
    prefix: str, source_lang: str, target_lang: str, *, key: str, optional_target: bool = False
) -> ParallelFiles:
    """Find ``PREFIX.SRC`` and ``PREFIX.TGT``, each plain or with ``.gz``.

    Args:
        prefix: path without the language; with wildcards it can match several pairs.
        source_lang: file name ending of the source files.
        target_lang: file name ending of the target files.
        key: the configuration key that ``prefix`` comes from, for messages.
        optional_target: whether target files may be missing for all source files.

    Returns:
        The files, sorted by name.

    Raises:
        DataError: there are no files, or one file of a pair is missing.
    """
    sources = expand(prefix, f".{source_lang}")
    targets = expand(prefix, f".{target_lang}")
    if not sources or (not targets and not optional_target):
        raise _missing(prefix, target_lang if sources else source_lang, key, (source_lang, target_lang))
    if not targets:
        return ParallelFiles(list(sources.values()), None)
    if alone := sources.keys() ^ targets.keys():
        stem = min(alone)
        have, lack = (source_lang, target_lang) if stem in sources else (target_lang, source_lang)
        raise DataError(f"{key}={prefix}: there is {stem}.{have} but neither {stem}.{lack} nor {stem}.{lack}.gz")
    return ParallelFiles(list(sources.values()), list(targets.values()))


def _missing(prefix: str, lang: str, key: str, languages: tuple[str, str]) -> DataError:
    folder, plain = Path(prefix).parent, prefix.removesuffix(".gz")
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    hint = nearest(f"{Path(prefix).name}.{lang}", names) if names else f" (there is no folder {folder})"
    for language in languages:
        if plain.endswith(f".{language}"):
            hint = f"; leave out the language: {key}={plain.removesuffix(f'.{language}')}"
    return DataError(f"{key}={prefix}: there is neither {prefix}.{lang} nor {prefix}.{lang}.gz{hint}")
