"""The common part of all commands: arguments, also from ``config=FILE``, help, plugins, and errors as sentences."""

from __future__ import annotations

import errno
import functools
import gc
import io
import logging
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks, as the import above declares the models
from seqgen import __version__
from seqgen.cli import end_now
from seqgen.cli.keys import CONFIG_KEY, every_key
from seqgen.cli.start import fail
from seqgen.config import CommonConfig, GenerateConfig, TrainConfig
from seqgen.config.compose import compose_given
from seqgen.config.keys import is_group
from seqgen.config.user_files import import_user_dir
from seqgen.config.values import is_pair, repeated, split_argument, text_list, text_values, value_text
from seqgen.core.errors import ConfigError, UserError
from seqgen.data.token_store import available_cores
from seqgen.modules.kernel_choice import set_threads
from seqgen.registry import GROUPS
from seqgen.system.devices import find_device, keep_freed_memory, memory_errors, present_devices
from seqgen.system.error_messages import missing_hook, printable
from seqgen.system.reading import parse_yaml, read_bytes

C = TypeVar("C")

INFORMING = ("-h", "--help", "--completion", "--version")
"""Options that print information instead of doing the command's work."""

SWEEP = ("-m", "--multirun")
"""Options that run a command with several configurations."""


def run(
    schema: type[C],
    work: Callable[..., int | None],
    description: str,
    argv: Sequence[str] | None = None,
    sweep: Callable[[Arguments], int | None] | None = None,
    complete: Callable[[list[str]], list[str]] = list,
    pass_arguments: bool = False,
    words: str = "",
    prefixes: Sequence[str] = (),
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
        words: the key whose values can also be given as words without ``KEY=``, such as folders.
        prefixes: the beginnings, without the dot, of arguments that are no keys of ``schema``; see ``Arguments``.
    """
    gc.freeze()  # the objects of modules live as long as the process, and need not be visited again
    gc.enable()
    typed = list(sys.argv[1:] if argv is None else argv)
    prefixed = {
        prefix: [a.removeprefix(f"{prefix}.") for a in typed if a.startswith(f"{prefix}.")] for prefix in prefixes
    }
    line = CommandLine([a for a in typed if a.partition(".")[0] not in prefixes], words)
    program = "seqgen-" + Path(sys.argv[0]).stem.removeprefix("seqgen-")
    logger = logging.getLogger("seqgen")  # its messages are not shown if seqgen is used from Python
    logger.handlers, logger.propagate = [_ProgressHandler()], False
    logger.setLevel(logging.INFO)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the names of files need not be UTF-8
    with _reported_errors(program):
        line.check(schema, SWEEP if sweep else ())
        read = with_config_files(schema, line.pairs)
        import_plugins(line.pairs)
        read.check_trusted(schema)
        if line.informs:
            print(_information(schema, program, description, line))
            sys.exit(0)
        for message in [*repeated(line.pairs), *read.messages]:
            log(message)
        read.overrides, read.typed, read.prefixed = complete(read.overrides), [program, *line.typed], prefixed
        if sweep and {*SWEEP} & {*line.flags}:
            work_now = functools.partial(sweep, read)
        else:
            try:
                config, read.given = compose_given(schema, read.overrides)
            except ConfigError as error:
                raise ConfigError(f"{error}{read.source_location(str(error))}") from None
            work_now = functools.partial(work, config, *([read] if pass_arguments else []))
        if signal.getsignal(signal.SIGINT) is end_now:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on, something may have to be saved
        sys.exit(work_now() or 0)


@contextmanager
def _reported_errors(program: str) -> Iterator[None]:
    """End the process after an error of the user, with a sentence and an exit code."""
    try:
        with memory_errors(lambda: "on this machine; close other programs, or use a machine with more memory"):
            yield
    except UserError as error:
        fail(program, str(error), 2)
    except NotImplementedError as error:
        if not (message := missing_hook(error)):
            raise
        fail(program, message, 2)
    except BrokenPipeError:
        # the reader has closed the pipe; without this line, flushing at exit fails
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        fail(program, "interrupted", 130)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        advice = "; free some space and run the command again" if error.errno == errno.ENOSPC else ""
        if error.errno is None:
            raise
        fail(program, f"cannot read or write{where}: {error.strerror}{advice}", 2)


class CommandLine:
    """The arguments that a user typed.

    Args:
        typed: all arguments, in order.
        key: the key whose values can be words; empty if there is none.

    Attributes:
        typed: all arguments; words are in the value of ``key``, except topics.
        as_typed: all arguments, in the order in which they were typed.
        flags: those that begin with ``-``.
        words: the topics of options that inform.
        pairs: those of the form ``key=value``; without such an option, all others are there too.
    """

    def __init__(self, typed: Sequence[str], key: str = ""):
        self.as_typed = self.typed = list(typed)
        self.flags = [text for text in typed if text.startswith("-") and not re.search(r"\s", text)]
        self.informs = any(flag in INFORMING for flag in self.flags)
        self.pairs = [text for text in typed if text not in self.flags]
        self.words = [text for text in self.pairs if not is_pair(text)]
        if self.informs:
            self.pairs = [text for text in self.pairs if is_pair(text)]
        elif key and self.words:
            same = [text for text in self.pairs if text.startswith(f"{key}=")]
            named = [item for text in same for item in text_values([text], key, list[str] if "=[" in text else str)]
            others = [text for text in self.typed if text not in (*self.words, *same)]
            self.typed = [f"{key}={text_list([*self.words, *named])}", *others]
            self.pairs = [text for text in self.typed if text not in self.flags]

    def check(self, schema: type, options: Sequence[str]) -> None:
        """Check that all arguments are UTF-8 and all options exist.

        Args:
            schema: the root dataclass of the command's configuration.
            options: those that the command has besides ``INFORMING``.

        Raises:
            ConfigError: one is not.
        """
        if wrong := next((text for text in self.typed if re.search("[\ud800-\udfff]", text)), ""):
            raise ConfigError(
                f"the argument {wrong} is not UTF-8, which the libraries for weights need; rename the file"
            )
        unknown = [flag for flag in self.flags if flag.partition("=")[0] not in (*INFORMING, *options)]
        if unknown:
            from seqgen.cli.help import unknown_option  # only for this message

            raise ConfigError(unknown_option(schema, self.as_typed, unknown[0]))


def _information(schema: type, program: str, description: str, line: CommandLine) -> str:
    """The text that ``--help``, ``--help TOPIC``, ``--completion SHELL`` or ``--version`` prints."""
    if "--version" in line.flags:
        return f"{program} {__version__}"
    # the topics of a question: the words, and the keys of those ``key=value`` that come after the option
    after = [text for text in line.typed[line.typed.index(line.flags[0]) + 1 :] if text in line.pairs]
    keys = [text.partition("=")[0] for text in after]
    words = [*line.words, *(key for key in keys if key not in (CONFIG_KEY, "common.user_dir"))]
    if "--completion" in line.flags:
        from seqgen.cli.completion import completion_script  # not for every start of a command

        return completion_script(schema, program, words[0] if words else "")
    from seqgen.cli.help import help_on, help_text, whole_help

    if "all" in words:
        return whole_help(schema, program, description)
    if words:
        return "\n\n".join(help_on(schema, program, word) for word in words)
    return help_text(schema, program, description)


@dataclass
class Arguments:
    """The arguments of a command, with those that come from files.

    Attributes:
        overrides: ``key=value`` arguments without ``config``; the command line's come last.
        messages: what the user should know about keys of a file that are not used.
        files: by each key that comes from a file, the file.
        typed: the program and its arguments, as typed; empty if only keys were given.
        prefixed: by prefix, the arguments with a prefix of the command, without it.
        given: the settings of decoding that they give, see ``compose_given``.
    """

    overrides: list[str]
    messages: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    typed: list[str] = field(default_factory=list)
    prefixed: dict[str, list[str]] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)

    def source_location(self, message: str) -> str:
        """The file that has the key of an error message, as the end of the message; empty if no file has it."""
        found = [file for key, file in self.files.items() if repr(key) in message or f"{key}=" in message]
        return f"; the key is in {CONFIG_KEY}={found[0]}" if found else ""

    def check_trusted(self, schema: type) -> None:
        """Check that no file names what is written or what can run code. The user's components are imported already.

        Args:
            schema: the root dataclass of the command's configuration.

        Raises:
            ConfigError: a file does, and the user has not typed the key.
        """
        if not self.files:
            return
        values = dict(map(split_argument, self.overrides))
        for key in every_key(schema):
            value, is_unsafe = values.get(key.name), key.role in ("output_path", "code")
            if is_unsafe and key.name in self.files and value != value_text(key.default):
                what = "is written" if key.role == "output_path" else "can run code"
                raise ConfigError(
                    f"{CONFIG_KEY}={self.files[key.name]} sets {key.name}={value}, a path that {what}; a "
                    f"file may not set it: type {key.name}={value} as well if you trust the file, or another value"
                )


def with_config_files(schema: type, overrides: Sequence[str]) -> Arguments:
    """Replace ``config=FILE`` by the keys in the file.

    The command line overrides the file. A ``model=NAME`` on the command line also removes the file's ``model.KEY``,
    which are another model's. The file can be written by hand (``generation: {beam: 4}`` or ``generation.beam: 4``),
    or, for training, be the ``config.yaml`` of a run.

    Args:
        schema: the root dataclass of the command's configuration.
        overrides: ``key=value`` arguments.

    Returns:
        All arguments.

    Raises:
        ConfigError: a file cannot be read, or its content is not keys and values.
    """
    files = text_values(overrides, CONFIG_KEY)
    rest = [override for override in overrides if override.partition("=")[0] != CONFIG_KEY]
    if not files:
        return Arguments(rest)
    given = dict(split_argument(override) for override in rest)
    found: dict[str, str] = {}
    files_of_keys: dict[str, str] = {}
    messages = []
    for file in files:
        content = _read(Path(file))
        if str(content.get("format")).startswith("seqgen-"):  # otherwise it is the key of the output format
            from seqgen.cli.record import changes, recorded_keys  # not for every start of a command

            try:
                keys = recorded_keys(content)
            except ConfigError as error:
                raise ConfigError(f"{CONFIG_KEY}={file}: {error}") from None
            if schema is not GenerateConfig:
                raise ConfigError(f"{CONFIG_KEY}={file}: this is a record of a decode, which is for seqgen-generate")
            messages += [f"{CONFIG_KEY}={file}: {change}" for change in changes(content)]
            content = keys
        is_run = all(
            isinstance(content.get(group), Mapping) and "_name" in content[group] for group in ("task", "model")
        )
        if is_run and schema is not TrainConfig:
            raise ConfigError(
                f"{CONFIG_KEY}={file}: this is the configuration of a training run, which is for seqgen-train; "
                "path=RUN uses a run with its own settings, and keys of this command are given in a file of their own"
            )
        listed = list(_pairs(schema, content))
        pairs = dict(listed)
        if len(pairs) < len(listed):
            ((twice, _),) = Counter(key for key, _ in listed).most_common(1)
            raise ConfigError(f"{CONFIG_KEY}={file}: {twice} is given twice, in two spellings; remove one of them")
        replaced = [group for group in GROUPS if group in given and is_group(schema, group)]
        for group in replaced:
            dropped = [key for key in pairs if key.partition(".")[0] == group]
            pairs = {key: value for key, value in pairs.items() if key not in dropped}
            if any("." in key for key in dropped):
                messages.append(f"{CONFIG_KEY}={file}: {group}.* is not used, because {group}={given[group]} is given")
        if wrong := next((key for key in pairs if "=" in key), ""):
            raise ConfigError(f"{CONFIG_KEY}={file}: {wrong!r} is not a key")
        used = {key: value for key, value in pairs.items() if key not in given}
        found |= used
        files_of_keys |= dict.fromkeys(used, file)
    return Arguments([*(f"{key}={value}" for key, value in found.items()), *rest], messages, files_of_keys)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = parse_yaml(read_bytes(path))
    except FileNotFoundError:
        raise ConfigError(f"{CONFIG_KEY}={path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{CONFIG_KEY}={path}: cannot read it: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{CONFIG_KEY}={path}: not a YAML file: {error}") from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{CONFIG_KEY}={path}: the file must contain keys and values, such as generation.beam: 4")
    return content


def _pairs(schema: type, content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Keys and values as a user would type them; ``user_files`` is recorded by training, and no user sets it."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        if name == "user_files" or (value is None and is_group(schema, key)):
            continue
        if key == "generation.components" and isinstance(value, Mapping):
            yield from ((component_key, value_text(item)) for component_key, item in value.items())
        elif isinstance(value, Mapping):
            if is_group(schema, key) and "_name" in value:  # see ``seqgen.config.values.to_dict``
                yield key, str(value["_name"])
            yield from _pairs(schema, {inner: item for inner, item in value.items() if inner != "_name"}, f"{key}.")
        else:
            yield key, value_text(value)


def import_plugins(overrides: Sequence[str]) -> None:
    """Import the user's own components: installed plugins, and the files of ``common.user_dir``.

    Args:
        overrides: the ``key=value`` arguments that the user typed; those of ``config=FILE`` import nothing.

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
    import_user_dir(*map(Path, text_values(overrides, "common.user_dir")))


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
        set_threads(cfg.threads)
    if cfg.threads > (cores := available_cores()):
        log(f"common.threads={cfg.threads} is slower than fewer threads, because this process has {cores} cores")
    if cfg.keep_freed_memory:
        keep_freed_memory()
    return find_device(present_devices()[0] if cfg.device == "auto" else cfg.device, "common.device")


class _ProgressHandler(logging.Handler):
    """Prints what the engine logs, such as the progress of SentencePiece training."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message on standard error."""
        log(record.getMessage())


def log(message: str) -> None:
    """Print a message on standard error."""
    print(printable(message), file=sys.stderr, flush=True)
