"""Code of all commands: arguments, help, plugins, and errors reported as one sentence."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks, as the import above declares the models
from seqgen import __version__
from seqgen.cli.help import help_text
from seqgen.compose import compose
from seqgen.config import CommonConfig
from seqgen.devices import find_device, present_devices
from seqgen.errors import ConfigError, UserError
from seqgen.memory import memory_errors

C = TypeVar("C")


def run(
    schema: type[C],
    work: Callable[[C], int | None],
    description: str,
    argv: Sequence[str] | None = None,
    sweep: Callable[[list[str]], int | None] | None = None,
) -> NoReturn:
    """Run a command and exit: 0 when all went well, 2 after a sentence about what the user gave.

    Args:
        schema: the root dataclass of its configuration.
        work: what it does with the configuration; returns an exit code, ``None`` being 0.
        description: what it does, for ``--help``.
        argv: arguments; those of the process if not given.
        sweep: what it does with the arguments after ``-m``; ``None`` where it has no sweeps.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    program = "seqgen-" + Path(sys.argv[0]).stem.removeprefix("seqgen-")
    try:
        with memory_errors(lambda: "on this machine; close other programs, or use a machine with more memory"):
            code = _dispatch(schema, work, description, arguments, sweep, program)
        sys.exit(code or 0)
    except UserError as error:
        _fail(f"{program}: {error}", 2)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader has closed the pipe; without this, flushing at exit fails
        sys.exit(141)
    except KeyboardInterrupt:
        _fail(f"{program}: interrupted", 130)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        advice = "; free some space and run the command again" if error.errno == errno.ENOSPC else ""
        if error.errno is None:
            raise
        _fail(f"{program}: cannot read or write{where}: {error.strerror}{advice}", 2)


def _dispatch(
    schema: type[C],
    work: Callable[[C], int | None],
    description: str,
    arguments: list[str],
    sweep: Callable[[list[str]], int | None] | None,
    program: str,
) -> int | None:
    flags = [argument for argument in arguments if argument.startswith("-") and "=" not in argument]
    overrides = [argument for argument in arguments if argument not in flags]
    unknown = sorted({*flags} - {"-h", "--help", "--version", *(("-m", "--multirun") if sweep else ())})
    if unknown:
        raise ConfigError(
            f"unknown option {unknown[0]!r}; arguments have the form key=value, and --help lists the keys"
        )
    if "--version" in flags:
        print(f"{program} {__version__}")
        return 0
    import_plugins(overrides)
    if "-h" in flags or "--help" in flags:
        print(help_text(schema, program, description))
        return 0
    if sweep and ("-m" in flags or "--multirun" in flags):
        return sweep(overrides)
    return work(compose(schema, overrides))


def _fail(message: str, code: int) -> NoReturn:
    sys.stdout.flush()
    print(message, file=sys.stderr)
    sys.exit(code)


def import_plugins(overrides: Sequence[str]) -> None:
    """Import what registers components of the user's own: installed plugins, and ``common.user_dir``.

    Args:
        overrides: the command's arguments.

    Raises:
        ConfigError: a plugin is missing or fails to import.
    """
    for plugin in entry_points(group="seqgen.plugins"):
        try:
            plugin.load()
        except Exception as error:
            raise ConfigError(
                f"plugin {plugin.name!r} ({plugin.value}) fails: {type(error).__name__}: {error}"
            ) from error
    paths = [value for key, _, value in (o.partition("=") for o in overrides) if key == "common.user_dir" and value]
    if paths:
        import_user_dir(Path(paths[-1]))


def import_user_dir(path: Path) -> None:
    """Import a file, or a folder: as a package where it has an ``__init__.py``, else each of its files.

    Args:
        path: the file or folder.

    Raises:
        ConfigError: there is no such thing, or it fails to import.
    """
    if (path / "__init__.py").is_file():
        files = [path / "__init__.py"]
    elif path.is_dir():
        files = sorted(path.glob("*.py"))
    else:
        files = [path] if path.is_file() else []
    if not files:
        raise ConfigError(f"common.user_dir={path}: no such Python file, and no folder that contains Python files")
    for file in files:
        _import_file(file)


def _import_file(file: Path) -> None:
    stem = file.parent.name if file.name == "__init__.py" else file.stem
    name = f"seqgen_user_{stem}"
    imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    if str(file.resolve()) in imported:
        return  # under whatever name: importing it again would register everything twice
    folder = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file.resolve(), submodule_search_locations=folder)
    if spec is None or spec.loader is None:
        raise ConfigError(f"common.user_dir: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UserError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"common.user_dir: {file} fails to import: {type(error).__name__}: {error}") from error


def set_up_device(cfg: CommonConfig) -> torch.device:
    """Choose the device and the number of threads.

    Args:
        cfg: the ``common`` group.

    Returns:
        The device to compute on.

    Raises:
        ConfigError: it is not there.
    """
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    return find_device(present_devices()[0] if cfg.device == "auto" else cfg.device, "common.device")


def log(message: str, **values: Any) -> None:
    """Print a message on standard error."""
    print(message.format(**values) if values else message, file=sys.stderr, flush=True)
