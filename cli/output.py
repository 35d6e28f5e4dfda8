"""The output files of the commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from seqgen.errors import ConfigError


def check_output(key: str, path: str, *inputs: str) -> None:
    """Check before the work starts that the output can be written.

    Args:
        key: the key that names the output.
        path: the file or folder to write; ``-`` for standard output.
        inputs: input files, which must not be overwritten; empty names and ``-`` are ignored.

    Raises:
        ConfigError: the output is a folder or an input file, or its folder does not exist.
    """
    if path == "-":
        return
    place = Path(path)
    if not place.parent.is_dir():
        raise ConfigError(f"{key}={path}: the folder {place.parent} does not exist; create it or correct the path")
    if place.is_dir():
        raise ConfigError(f"{key}={path} is a folder; give a file name")
    for name in inputs:
        if name not in ("", "-") and Path(name).resolve() == place.resolve():
            raise ConfigError(f"{key}={path} would overwrite the input {name}; give another file name")


@contextmanager
def open_output(path: str) -> Iterator[IO[str]]:
    """Open a file to write text, or standard output.

    The encoding is UTF-8 and the line separator ``\\n`` on every system, so that output files can be inputs again.

    Args:
        path: the file, see ``check_output``; ``-`` for standard output.

    Yields:
        The open file.
    """
    if path == "-":
        with open(sys.stdout.fileno(), "w", encoding="utf-8", newline="\n", closefd=False) as file:
            yield file
    else:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            yield file
