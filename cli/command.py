"""What all commands share: arguments, help, plugins, and errors that are reported as one sentence."""

from __future__ import annotations

import dataclasses
import errno
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn, TypeVar

import torch

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks, as the import above declares the models
from seqgen import __version__
from seqgen.checkpoints.loading import CONFIG_FILE, recorded_user_dirs, run_folder, split_path
from seqgen.cli.config_file import KEY as CONFIG_KEY, Arguments, with_config_files
from seqgen.config import CommonConfig
from seqgen.config.compose import compose
from seqgen.config.user_files import import_user_dir
from seqgen.config.values import repeated, text_list, text_values
from seqgen.errors import ConfigError, UserError, printable
from seqgen.system.devices import find_device, keep_freed_memory, memory_errors, present_devices
from seqgen.system.hooks import missing

C = TypeVar("C")

INFORMING = ("-h", "--help", "--completion", "--version")
"""Options that print information instead of doing the command's work."""

SWEEP = ("-m", "--multirun")
"""Options that run a command with several configurations."""

RECORDED = "run"
"""The value of ``common.user_dir`` that means the files that the run has recorded."""


def run(
    schema: type[C],
    work: Callable[..., int | None],
    description: str,
    argv: Sequence[str] | None = None,
    sweep: Callable[[Arguments], int | None] | None = None,
    complete: Callable[[list[str]], list[str]] = list,
    pass_arguments: bool = False,
) -> NoReturn:
    """Run a command and exit: with the command's exit code, or with code 2 after an error of the user.

    Args:
        schema: the root dataclass of the command's configuration.
        work: the command itself; takes the configuration and returns the exit code, ``None`` for 0.
        description: what the command does, for ``--help``.
        argv: the arguments; ``None`` for those of the process.
        sweep: runs the command with several configurations, when the user gives ``-m``; takes the arguments. ``None``
            if the command has no sweeps.
        complete: adds arguments that follow from the user's.
        pass_arguments: whether ``work`` also takes the ``Arguments``.
    """
    line = CommandLine.parse(sys.argv[1:] if argv is None else argv)
    program = "seqgen-" + Path(sys.argv[0]).stem.removeprefix("seqgen-")
    log_progress()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the names of files need not be UTF-8
    try:
        with memory_errors(lambda: "on this machine; close other programs, or use a machine with more memory"):
            code = _dispatch(
                schema,
                work if pass_arguments else lambda cfg, _: work(cfg),
                description,
                line,
                sweep,
                program,
                complete,
            )
        sys.exit(code or 0)
    except UserError as error:
        _fail(program, str(error), 2)
    except NotImplementedError as error:
        if not (message := missing(error)):
            raise
        _fail(program, message, 2)
    except BrokenPipeError:
        # the reader has closed the pipe; without this line, flushing at exit fails
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        _fail(program, "interrupted", 130)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        advice = "; free some space and run the command again" if error.errno == errno.ENOSPC else ""
        if error.errno is None:
            raise
        _fail(program, f"cannot read or write{where}: {error.strerror}{advice}", 2)


def with_words(key: str, arguments: Sequence[str]) -> list[str]:
    """Add the words among the arguments, such as folders, to those of a key.

    With ``--help`` and other options that inform, words are topics instead.

    Args:
        key: the key, whose value is a list of strings.
        arguments: the arguments of a command.

    Returns:
        The arguments, with ``key=[...]`` in place of the words and of the key.
    """
    line = CommandLine.parse(arguments)
    if not line.words or line.informs:
        return list(arguments)
    same = [text for text in line.pairs if text.startswith(f"{key}=")]
    named = [item for text in same for item in text_values([text], key, list[str] if "=[" in text else str)]
    others = [text for text in arguments if text not in line.words and text not in same]
    return [f"{key}={text_list([*line.words, *named])}", *others]


@dataclass(frozen=True)
class CommandLine:
    """What a user typed.

    Attributes:
        typed: all arguments, in order.
        flags: those that begin with ``-``.
        words: those that are neither flags nor ``key=value``.
        pairs: those of the form ``key=value``.
    """

    typed: list[str]
    flags: list[str]
    words: list[str]
    pairs: list[str]

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> CommandLine:
        """Sort arguments."""
        others = [text for text in arguments if not text.startswith("-")]
        return cls(
            typed=list(arguments),
            flags=[text for text in arguments if text.startswith("-")],
            words=[text for text in others if "=" not in text],
            pairs=[text for text in others if "=" in text],
        )

    @property
    def informs(self) -> bool:
        """Whether the user asks for information only; words are then topics."""
        return any(flag in INFORMING for flag in self.flags)

    def topics(self) -> list[str]:
        """What the user asks about: the words, and the keys of those ``key=value`` that come after the option."""
        after = self.typed[self.typed.index(self.flags[0]) + 1 :]
        keys = [text.partition("=")[0] for text in after if text in self.pairs]
        return [*self.words, *(key for key in keys if key not in (CONFIG_KEY, "common.user_dir"))]


def _dispatch(
    schema: type[C],
    work: Callable[[C, Arguments], int | None],
    description: str,
    line: CommandLine,
    sweep: Callable[[Arguments], int | None] | None,
    program: str,
    complete: Callable[[list[str]], list[str]],
) -> int | None:
    if wrong := next((text for text in line.typed if re.search("[\ud800-\udfff]", text)), ""):
        raise ConfigError(f"the argument {wrong} is not UTF-8, which the libraries for weights need; rename the file")
    unknown = {flag.partition("=")[0] for flag in line.flags} - {*INFORMING, *(SWEEP if sweep else ())}
    if "--version" in line.flags:
        print(f"{program} {__version__}")
        return 0
    if unknown:
        from seqgen.cli.help import unknown_option  # only for this message

        flag = next(flag for flag in line.flags if flag.split("=")[0] in unknown)
        raise ConfigError(unknown_option(schema, line.typed, flag))
    pairs = line.pairs if line.informs else [text for text in line.typed if text not in line.flags]
    read = with_config_files(schema, pairs)
    overrides = [*read.overrides, *import_plugins(pairs)]
    read.check_trusted(schema)
    if line.informs:
        print(_information(schema, program, description, line))
        return 0
    for message in [*repeated(pairs), *read.messages]:
        log(message)
    read = dataclasses.replace(read, overrides=complete(overrides), typed=[program, *line.typed])
    if sweep and {*SWEEP} & {*line.flags}:
        return sweep(read)
    try:
        config = compose(schema, read.overrides)
    except ConfigError as error:
        raise ConfigError(f"{error}{read.origin(str(error))}") from None
    return work(config, read)


def _information(schema: type, program: str, description: str, line: CommandLine) -> str:
    """The text that ``--help``, ``--help TOPIC`` or ``--completion SHELL`` prints."""
    words = line.topics()
    if "--completion" in line.flags:
        from seqgen.cli.completion import completion_script  # not for every start of a command

        return completion_script(schema, program, words[0] if words else "")
    from seqgen.cli.help import help_on, help_text, whole_help

    if "all" in words:
        return whole_help(schema, program, description)
    if words:
        return "\n\n".join(help_on(schema, program, word) for word in words)
    return help_text(schema, program, description)


def _fail(program: str, message: str, code: int) -> NoReturn:
    sys.stdout.flush()
    print(f"{_in_red(f'{program}:')} {printable(message)}", file=sys.stderr)
    sys.exit(code)


def _in_red(text: str) -> str:
    """Text in red, if standard error is a terminal that shows colours and the user wants them (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb" or not sys.stderr.isatty()
    return text if plain else f"\x1b[1;31m{text}\x1b[0m"


def import_plugins(overrides: Sequence[str]) -> list[str]:
    """Import the user's own components: installed plugins, and the files of ``common.user_dir``.

    Args:
        overrides: the ``key=value`` arguments that the user typed; those of ``config=FILE`` import nothing.

    Returns:
        The argument that replaces ``common.user_dir=run``: the files that the run has recorded; empty without it.

    Raises:
        ConfigError: a plugin is missing or fails to import.
    """
    for plugin in entry_points(group="seqgen.plugins"):
        try:
            plugin.load()
        except Exception as error:
            raise ConfigError(
                f"plugin {plugin.name!r} ({plugin.value}) fails to import: {type(error).__name__}: {error}"
            ) from error
    given = text_values(overrides, "common.user_dir")
    paths = [path for item in given for path in (_recorded(overrides) if item == RECORDED else [item])]
    import_user_dir(*map(Path, paths))
    return [f"common.user_dir={text_list(paths)}"] if RECORDED in given else []


def _recorded(overrides: Sequence[str]) -> list[str]:
    """The files that were recorded by the runs that ``path`` or ``run_dir`` names, each once.

    Raises:
        ConfigError: no run is named, or a recorded file does not exist.
    """
    paths = text_values(overrides, "path") or text_values(overrides, "run_dir", str)
    folders = [folder for path in paths for part in split_path(path) if (folder := run_folder(Path(part)))]
    if not folders:
        raise ConfigError(
            "common.user_dir=run imports the files that a run has recorded, but neither path nor run_dir names a run "
            "on the command line; give common.user_dir=FILE (or ./run, if run is the name of your folder)"
        )
    found: list[str] = []
    for folder in folders:
        recorded = recorded_user_dirs(folder)
        if not recorded:
            log(f"common.user_dir=run: {folder} was trained without files of your own, so none are imported")
        for path in recorded:
            if not Path(path).exists():
                raise ConfigError(
                    f"common.user_dir=run: {folder / CONFIG_FILE} records {path}, which does not exist; give the "
                    "file's new path as common.user_dir=PATH"
                )
        found += recorded
    return list(dict.fromkeys(found))


def set_up_device(cfg: CommonConfig) -> torch.device:
    """Choose the device, the number of threads, and what happens to freed memory.

    Args:
        cfg: the ``common`` group.

    Returns:
        The device to compute on.

    Raises:
        ConfigError: the device is not available.
    """
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    if cfg.keep_freed_memory:
        keep_freed_memory()
    return find_device(present_devices()[0] if cfg.device == "auto" else cfg.device, "common.device")


class _ProgressHandler(logging.Handler):
    """Prints what the engine logs, such as the progress of SentencePiece training."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message on standard error."""
        log(record.getMessage())


def log_progress() -> None:
    """Print the progress messages of seqgen's packages, which are not shown if seqgen is used from Python."""
    logger = logging.getLogger("seqgen")
    if not any(isinstance(handler, _ProgressHandler) for handler in logger.handlers):
        logger.addHandler(_ProgressHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False


def log(message: str) -> None:
    """Print a message on standard error."""
    print(printable(message), file=sys.stderr, flush=True)
