"""The comparison of systems by ``seqgen-score``: its files, and its output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqgen.cli.command import log
from seqgen.cli.output import write_report
from seqgen.data.text import read_lines
from seqgen.errors import ConfigError, DataError
from seqgen.lab.compare.comparison import Comparison
from seqgen.system.files import write_atomically


def parallel_lines(files: Sequence[str]) -> list[list[str]]:
    """Read text files whose lines belong together.

    Args:
        files: the files.

    Returns:
        The lines of each file.

    Raises:
        DataError: a file cannot be read, or the numbers of lines differ.
    """
    texts = [list(read_lines(Path(file), pipes=True)) for file in files]
    for file, text in zip(files, texts, strict=True):
        if len(text) != len(texts[0]):
            raise DataError(
                f"{files[0]} has {len(texts[0])} lines but {file} has {len(text)}; line n of one must belong to line n "
                "of the other"
            )
    if not texts[0]:
        log(f"{' and '.join(files)} have no lines; there is nothing to score")
    return texts


def system_names(files: Sequence[str]) -> list[str]:
    """Names of systems for reports: those of their files, without folders and endings if they then differ.

    Args:
        files: the files with their outputs.

    Raises:
        ConfigError: a file is given twice.
    """
    for number, file in enumerate(files):
        if file in files[:number]:
            raise ConfigError(f"hypothesis names {file} twice; give each system once")
    for names in ([Path(file).stem for file in files], [Path(file).name for file in files]):
        if len(set(names)) == len(names):
            return names
    return list(files)


def write_comparison(comparison: Comparison, json_file: str, page: str) -> None:
    """Print a comparison as a table, and write its JSON and its page.

    Args:
        comparison: the comparison.
        json_file: file for the JSON; ``-`` for standard output, in place of the table; empty for none.
        page: file for the page; empty for none.

    Raises:
        UserError: a file cannot be written.
    """
    from seqgen.lab.compare.report import page as page_of, text_report

    write_report(text_report(comparison), comparison.as_dict(), json_file)
    if page:
        names = ", ".join(system.name for system in comparison.systems)
        write_atomically(Path(page), page_of(comparison, f"Comparison of {names}"))
