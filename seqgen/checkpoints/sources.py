"""Where models come from: a path, or the name of a model that is downloaded, such as ``hf:ORGANIZATION/NAME``.

A source is declared with a module that has ``fetch(name: str) -> Path``, and that is imported when it is first used.
"""

from __future__ import annotations

import re
from pathlib import Path

from seqgen.core.errors import ConfigError
from seqgen.registry import import_declared

_MODULES: dict[str, str] = {}
"""The module of each source, by the prefix of its models."""


def declare_source(prefix: str, module: str) -> None:
    """Declare a source of models.

    Args:
        prefix: beginning of its models' names, without the colon.
        module: dotted name of the module that has ``fetch``.
    """
    _MODULES[prefix] = module


def is_remote(path: str | Path) -> bool:
    """True if a path is the name of a model that is downloaded."""
    prefix, colon, _ = str(path).partition(":")
    return bool(colon) and prefix in _MODULES


def local_path(path: str | Path) -> Path:
    """The file or folder that the path of a model refers to; a model of a source is downloaded when it is first used.

    Args:
        path: a path, ``hf:ORGANIZATION/NAME`` with an optional ``@REVISION`` (a branch, a tag or a commit), or
            ``firefox:FROM-TO``.

    Returns:
        The path itself, or the folder in the source's cache.

    Raises:
        CheckpointError: there is no such model, it cannot be downloaded, or seqgen cannot read it.
        ConfigError: the path is an address or no name of the source, or a package is missing.
    """
    prefix, _, name = str(path).partition(":")
    if is_remote(path):
        folder: Path = import_declared(_MODULES[prefix], f"path={path}").fetch(name)
        return folder
    if "://" in str(path):
        raise ConfigError(f"{path} is an address; a model of the Hugging Face Hub is written hf:ORGANIZATION/NAME")
    return Path(path)


def split_path(path: str) -> list[str]:
    """Split ``a.pt:b.pt`` at its colons, unless it is an address, or a file or folder has the whole name.

    The colon after a source's prefix, as of ``hf:``, belongs to the part.
    """
    if ":" not in path or "://" in path or Path(path).exists():
        return [path]
    after_prefix = "".join(f"(?<!^{prefix})(?<!:{prefix})" for prefix in _MODULES)
    return [part for part in re.split(f"{after_prefix}:", path) if part]
