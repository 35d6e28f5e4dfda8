"""Imports the user's Python files, and finds what a run records about them.

The ``config.yaml`` of a run has two records in its ``common`` group: ``user_dir`` lists the files and folders that were
imported, as the user gave them; ``user_files`` has the file that registered each of the user's components in the run,
and each of the user's keys.
The recorded files are not imported by those who use the run: a model that needs one is refused, with the file's name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from seqgen.config.generation import Options
from seqgen.core.contract import is_built_in
from seqgen.core.errors import ConfigError, UserError
from seqgen.registry import DECODING_COMPONENTS, GROUPS, TRAINING_COMPONENTS, Entry

_PREFIX = "seqgen_user_"


class _UserFiles(MetaPathFinder, Loader):
    """Finds the user's files, as modules ``seqgen_user_NAME`` and by their names, so that they can import one another.

    An installed module with the name of a file is not hidden by it. It is asked first nevertheless: where Python's path
    has the folder of the files, as in ``torchrun -m``, a file would be a second module under its own name.
    """

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}
        """The file of each module."""

    def add(self, file: Path) -> str:
        """Give a file the name of a module; a name that several files have is that of the last one."""
        for name, known in self.files.items():
            if known == file:
                return name
        stem = name = _PREFIX + _file_name(file).replace(".", "_")
        number = 1
        while name in self.files or name in sys.modules:
            number += 1
            name = f"{stem}_{number}"
        self.files[name] = file
        return name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``importlib``."""
        if (file := self.files.get(fullname)) is not None:
            folder = [str(file.parent)] if file.name == "__init__.py" else None
            return spec_from_file_location(fullname, file, submodule_search_locations=folder)
        if not self._called(fullname):
            return None
        specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        found = next(filter(None, specs), None)
        own = found is None or Path(found.origin or "").resolve() in self.files.values()
        return spec_from_loader(fullname, self) if own else found

    def exec_module(self, module: ModuleType) -> None:
        """A module that is imported by the name of its file is the same as ``seqgen_user_NAME``."""
        sys.modules[module.__name__] = importlib.import_module(self._called(module.__name__))

    def _called(self, name_of_file: str) -> str:
        """The module of the file with this name; empty if there is none."""
        files = reversed(self.files.items())
        return next((name for name, file in files if name.startswith(_PREFIX) and _file_name(file) == name_of_file), "")


_USER_FILES = _UserFiles()
sys.meta_path.insert(0, _USER_FILES)


def _file_name(file: Path) -> str:
    return file.parent.name if file.name == "__init__.py" else file.stem


def import_user_dir(*paths: Path) -> None:
    """Import Python files and folders, which can import one another by their names.

    Args:
        paths: the files and folders. A folder with an ``__init__.py`` is imported as a package; of other folders, each
            Python file is imported.

    Raises:
        ConfigError: there is no Python file at a path, or a file fails to import.
    """
    imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    files = [file for path in paths for file in _python_files(path)]
    # a file that is imported already, under any name, is left out: it would register its components twice
    names = {_USER_FILES.add(file.resolve()): file for file in files if str(file.resolve()) not in imported}
    for name, file in names.items():
        try:
            importlib.import_module(name)
        except UserError:
            raise
        except Exception as error:
            raise ConfigError(f"common.user_dir: {file} fails to import: {type(error).__name__}: {error}") from error


def _python_files(path: Path) -> list[Path]:
    """The files to import for a path.

    Raises:
        ConfigError: there is none.
    """
    if (path / "__init__.py").is_file():
        return [path / "__init__.py"]
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    if not files or not all(file.is_file() and file.suffix == ".py" for file in files):
        raise ConfigError(f"common.user_dir={path}: no such Python file, and no folder that contains Python files")
    return files


def user_modules() -> list[tuple[str, str]]:
    """Name and file of each module that ``import_user_dir`` has imported, in the order in which they were given."""
    return [(name, str(file)) for name, file in _USER_FILES.files.items() if name in sys.modules]


def import_modules(modules: Iterable[tuple[str, str]]) -> None:
    """Import the modules of another process.

    Args:
        modules: the result of ``user_modules`` there. Each is imported by name, or else from its file.
    """
    modules = list(modules)
    _USER_FILES.files.update((name, Path(file)) for name, file in modules if file)
    for name, _ in modules:
        importlib.import_module(name)


def _file_of(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__file__", "") or "")


def components_in_use(config: Any) -> Iterator[tuple[str, Entry]]:
    """The registered components that a configuration uses, including its decoding components.

    Args:
        config: the root of a configuration.

    Yields:
        ``GROUP.NAME`` and entry of each component.
    """
    for group, registry in GROUPS.items():
        if (part := getattr(config, group, None)) is not None:
            entry = registry.of(part)
            yield f"{group}.{entry.name}", entry
    for part, table in (("generation", DECODING_COMPONENTS), ("training", TRAINING_COMPONENTS)):
        for group, (registry, choice) in table.items():
            chosen = getattr(getattr(config, part, None), choice, [])
            for name in [chosen] if isinstance(chosen, str) else chosen:
                if (found := registry.find(name)) is not None:
                    yield f"{group}.{name}", found


def recorded_files(config: Any, user_dirs: Iterable[str]) -> dict[str, str]:
    """Find the file that registered each of the user's components that a configuration uses, and declared their keys.

    Args:
        config: the root of a configuration.
        user_dirs: the files and folders that were imported. The paths of files in them begin as the user gave them.

    Returns:
        Files by ``GROUP.NAME``, and by ``generation.KEY``.
    """
    given = [Path(path) for path in user_dirs]
    used = {key: _file_of(entry.component.__module__) for key, entry in components_in_use(config) if entry.is_user_own}
    own = [options for options in Options.__bases__ if not is_built_in(options)]
    used |= {f"generation.{each.name}": _file_of(options.__module__) for options in own for each in fields(options)}
    return {key: str(_as_given(Path(file), given)) for key, file in used.items() if file}


def _as_given(file: Path, user_dirs: Iterable[Path]) -> Path:
    """The path that imports a file when it is given as ``common.user_dir``: for a file of a package, the package."""
    for path in user_dirs:
        whole = path.resolve()
        if file == whole:
            return path
        if file.is_relative_to(whole):
            return path if (path / "__init__.py").is_file() else path / file.relative_to(whole)
    return file
