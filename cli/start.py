"""The entry point of all commands, which answers what needs no PyTorch before PyTorch is imported."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from seqgen import __version__
from seqgen.errors import printable


def main() -> None:
    """Run the command that has the name of the program."""
    program = Path(sys.argv[0]).stem
    if "--version" in sys.argv:
        print(f"{program} {__version__}")
        return
    importlib.import_module(f"seqgen.cli.{program.removeprefix('seqgen-')}").main()


def fail(program: str, message: str, code: int) -> NoReturn:
    """Print an error, and end the process with an exit code."""
    sys.stdout.flush()
    print(f"{in_red(f'{program}:')} {printable(message)}", file=sys.stderr)
    sys.exit(code)


def in_red(text: str) -> str:
    """Text in red, if standard error is a terminal that shows colours and the user wants them (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb" or not sys.stderr.isatty()
    return text if plain else f"\x1b[1;31m{text}\x1b[0m"
