"""The entry point of all commands, which answers what needs no PyTorch before PyTorch is imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

from seqgen import __version__
from seqgen.cli.commands import COMMANDS, OF_ADDONS
from seqgen.cli.keys import CONFIG_KEY
from seqgen.config import GenerateConfig
from seqgen.config.compose import is_component_key
from seqgen.config.keys import locate
from seqgen.config.values import is_pair, split_argument
from seqgen.core.errors import ConfigError, nearest
from seqgen.registry import import_declared
from seqgen.system.error_messages import printable


def main() -> None:
    """Run the command that has the name of the program."""
    program = Path(sys.argv[0]).stem
    if "--version" in sys.argv:
        print(f"{program} {__version__}")
        return
    try:
        if program == "seqgen-generate":  # the keys of other commands are declared beside code that needs PyTorch
            check_keys(sys.argv[1:])
        module = command_module(program.removeprefix("seqgen-"))
    except ConfigError as error:
        fail(program, str(error), 2)
    module.main()


def command_module(name: str) -> Any:
    """The module of a command, whose ``main`` runs it.

    A package adds a command ``seqgen-NAME`` by two entry points: ``seqgen-NAME = seqgen.cli.start:main`` of the group
    ``console_scripts``, and ``NAME = MODULE`` of the group ``seqgen.commands``.

    Args:
        name: name of the command, without ``seqgen-``.

    Raises:
        ConfigError: the command belongs to an add-on that is not installed, or does not exist.
    """
    if name in OF_ADDONS:
        return import_declared(f"seqgen.addons.{OF_ADDONS[name]}.command", f"the command seqgen-{name}")
    if f"seqgen-{name}" in COMMANDS:
        return importlib.import_module(f"seqgen.cli.{name}")
    for entry in entry_points(group="seqgen.commands"):
        if entry.name == name:
            return entry.load()
    raise ConfigError(f"there is no command seqgen-{name}{nearest(f'seqgen-{name}', COMMANDS)}")


def check_keys(typed: Sequence[str]) -> None:
    """Check the keys of ``seqgen-generate``, except those of components, and those beside options such as ``--help``.

    Nothing is checked where the user's own code, which is not imported yet, may have added the key.

    Args:
        typed: its arguments.

    Raises:
        ConfigError: a key does not exist.
    """
    if any(text.startswith("-") for text in typed):
        return
    keys = [split_argument(text)[0] for text in typed if is_pair(text)]
    try:
        for key in keys:
            if key != CONFIG_KEY and not is_component_key(GenerateConfig, key):
                locate(GenerateConfig, key)
    except ConfigError:
        if "common.user_dir" not in keys and not entry_points(group="seqgen.plugins"):
            raise


def fail(program: str, message: str, code: int) -> NoReturn:
    """Print an error, and end the process with an exit code."""
    sys.stdout.flush()
    print(f"{in_red(f'{program}:')} {printable(message)}", file=sys.stderr)
    sys.exit(code)


def in_red(text: str) -> str:
    """Text in red, if standard error is a terminal that shows colours and the user wants them (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb" or not sys.stderr.isatty()
    return text if plain else f"\x1b[1;31m{text}\x1b[0m"
