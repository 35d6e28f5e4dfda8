"""Registered components of a configuration: which class, with which values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from seqgen.config import GenerationConfig
from seqgen.config.component_keys import component_config
from seqgen.errors import ConfigError, DataError
from seqgen.generation.component import Component, Resources
from seqgen.registry import Registry

C = TypeVar("C", bound=Component)


def build(
    registry: Registry,
    name: str,
    base: type[C],
    cfg: GenerationConfig,
    resources: Resources,
    group: str = "",
    **flat: Any,
) -> C:
    """Make a registered component.

    Args:
        registry: has it.
        name: a registered name or a preset.
        base: the class that it must be a subclass of.
        cfg: has the values that the user gave for it (``cfg.components``).
        resources: what it may use.
        group: the prefix of its keys, by default the registry's.
        flat: values by the names of its configuration's fields that flat keys of ``cfg`` gave.

    Raises:
        ConfigError: the name is not registered or is of another kind of component, or a value cannot be used.
    """
    entry = registry.entry(name)
    if not issubclass(entry.component, base):
        raise ConfigError(f"{registry.kind} {name!r} ({entry.origin}) does not subclass {base.__name__}")
    return entry.component.build(component_config(registry, name, cfg, group, **flat), resources)


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Let messages about a value begin with the key that it was given in.

    Args:
        key: such as ``generation.suppress``.
    """
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(f"{key}: {error}") from None
