"""Keys that a user's file or an installed package adds to the ``generation`` group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeVar

from seqgen.config.generation import GenerationConfig, Options, keys_tagged
from seqgen.config.keys import types_of
from seqgen.config.values import DEFAULTS
from seqgen.core.contract import defined_in
from seqgen.core.errors import ConfigError

C = TypeVar("C", bound=type)


def register_options(group: str) -> Callable[[C], C]:
    """Add the keys of the decorated class to a group of the configuration.

    They work as the built-in ones do: on the command line, in ``--help``, in ``GenerationConfig(...)`` and in
    ``Translator(...)``. A component that is built finds their values in ``resources.settings``.

    Args:
        group: the group; ``generation`` is the only one that can be extended.

    Returns:
        The decorator; it returns the class, a dataclass whose fields are declared by ``option``, unchanged.

    Raises:
        ConfigError: the group cannot be extended, the class is no such dataclass, or a key is taken.
    """
    if group != "generation":
        raise ConfigError(f"register_options({group!r}): only the group 'generation' can be extended")

    def decorator(options: C) -> C:
        where = f"{options.__name__} ({defined_in(options)})"
        declared = fields(options) if is_dataclass(options) else ()
        if not declared or not all("help" in each.metadata for each in declared):
            raise ConfigError(f"{where} must be a dataclass whose fields are declared by option(...)")
        for name in (each.name for each in declared):
            if hasattr(GenerationConfig, name) or name in types_of(GenerationConfig):
                raise ConfigError(f"{where}: the key generation.{name} exists; rename yours")
        Options.__bases__ = (options, *Options.__bases__)
        _decorate_again()
        DEFAULTS.update(vars(GenerationConfig()))
        return options

    return decorator


def _decorate_again() -> None:
    """Give ``GenerationConfig`` the fields that its bases have got, in place: other modules hold it by name."""
    for method in ("__init__", "__repr__", "__eq__", "__match_args__"):
        delattr(GenerationConfig, method)
    dataclass(GenerationConfig)
    keys_tagged.cache_clear()
    types_of.cache_clear()
