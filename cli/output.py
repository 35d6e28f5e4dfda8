"""Where the commands write."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def open_output(path: str) -> Iterator[IO[str]]:
    """Open a file to write text, or standard output.

    It is UTF-8 with ``\\n`` whatever the terminal or the system prefers, so that lines out stay lines in.

    Args:
        path: the file, whose folder is made where it is missing; ``-`` for standard output.
    """
    if path == "-":
        with open(sys.stdout.fileno(), "w", encoding="utf-8", newline="\n", closefd=False) as file:
            yield file
    else:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            yield file
