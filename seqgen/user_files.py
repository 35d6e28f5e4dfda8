"""Imports the user's own Python files, and finds what a run records about them.

The ``config.yaml`` of a run has two records in its ``common`` group: ``user_dir`` lists the files and folders that were
imported, as the user gave them; ``user_files`` has the file that registered each of the user's components in the run.
The recorded files are not imported automatically: decoding imports them only with ``common.user_dir=run``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from seqgen.config import GenerationConfig
from seqgen.errors import ConfigError, UserError
from seqgen.registry import DECODING_COMPONENTS, GROUPS, Entry

_PREFIX = "seqgen_user_"


def import_user_dir(path: Path) -> None:
    """Import a Python file or a folder.

    Args:
        path: the file or folder. A folder with an ``__init__.py`` is imported as a package; of other folders, each
            Python file is imported.

    Raises:
        ConfigError: there is no Python file at this path, or a file fails to import.
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
        _import_user_file(file)


def _import_user_file(file: Path) -> None:
    imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    if str(file.resolve()) in imported:
        return  # imported already, under any name: a second import would register its components twice
    stem = _PREFIX + (file.resolve().parent.name if file.name == "__init__.py" else file.stem)
    name, number = stem, 1
    while name in sys.modules:  # a file with the same name in another folder
        number += 1
        name = f"{stem}_{number}"
    try:
        import_file(name, file.resolve())
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(f"common.user_dir: {file} fails to import: {type(error).__name__}: {error}") from error


def import_file(name: str, file: Path) -> None:
    """Import a file as a module; an ``__init__.py`` is imported as a package.

    Args:
        name: name of the module.
        file: the file.

    Raises:
        ImportError: the file is not a Python file.
        Exception: any error that the file's code raises.
    """
    folder = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folder)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {name} from {file}, which is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def user_modules() -> list[tuple[str, str]]:
    """Name and file of each module that ``import_user_dir`` has imported, in the order of import."""
    return [(name, _file_of(name)) for name in sys.modules if name.startswith(_PREFIX) and "." not in name]


def modules_of(components: Iterable[type]) -> list[tuple[str, str]]:
    """Find the modules of classes, so that a new process can import them if their folder is not on its path.

    Args:
        components: the classes.

    Returns:
        Name and file of each module, a package before its submodules.
    """
    names: list[str] = []
    for component in components:
        parts = component.__module__.split(".")
        names += [".".join(parts[: depth + 1]) for depth in range(len(parts))]
    return [(name, _file_of(name)) for name in dict.fromkeys(names)]


def import_modules(modules: Iterable[tuple[str, str]]) -> None:
    """Import the modules of another process.

    Args:
        modules: results of ``user_modules`` and ``modules_of`` there. Each is imported by name, or else from its file.
    """
    for name, file in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            import_file(name, Path(file))


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
    generation = getattr(config, "generation", None)
    if isinstance(generation, GenerationConfig):
        for group, (registry, chooser) in DECODING_COMPONENTS.items():
            chosen = getattr(generation, chooser)
            for name in [chosen] if isinstance(chosen, str) else chosen:
                if (found := registry.find(name)) is not None:
                    yield f"{group}.{name}", found


def recorded_files(config: Any, user_dirs: Iterable[str]) -> dict[str, str]:
    """Find the file that registered each of the user's components that a configuration uses.

    Args:
        config: the root of a configuration.
        user_dirs: the files and folders that were imported. The paths of files in them begin as the user gave them.

    Returns:
        Files by ``GROUP.NAME``.
    """
    given = [Path(path) for path in user_dirs]
    used = {key: _file_of(entry.component.__module__) for key, entry in components_in_use(config) if entry.is_user_own}
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
