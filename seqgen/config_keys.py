"""The keys of a configuration, such as ``dataset.max_tokens``, and the field that each key names."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from seqgen.errors import ConfigError
from seqgen.registry import GROUPS


def known_keys(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """List every key of a configuration.

    Args:
        config: the configuration.
        prefix: prefix of its keys.

    Yields:
        The key, its field and its value.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from known_keys(value, f"{prefix}{field.name}.")
        elif not holds_component(field) or field.name not in GROUPS:
            yield prefix + field.name, field, value


def holds_component(field: dataclasses.Field[Any]) -> bool:
    """Whether a field holds the configuration of a component, whose class depends on the chosen name."""
    return field.type in (Any, "Any")


def is_group(schema: type, key: str) -> bool:
    """Whether a key chooses a component of a configuration: ``model``, but not ``model.dropout``."""
    return key in GROUPS and key in {field.name for field in dataclasses.fields(schema) if holds_component(field)}


def locate(config: Any, key: str) -> tuple[Any, dataclasses.Field[Any]]:
    """Find the dataclass instance and the field that a dotted key names.

    Raises:
        ConfigError: there is no such key, or it names a whole group.
    """
    *path, last = key.split(".")
    owner = config
    for part in path:
        owner = getattr(owner, part, None) if dataclasses.is_dataclass(owner) else None
    fields = {field.name: field for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else {}
    if last not in fields:
        raise ConfigError(f"unknown key {key!r}{_hint(config, key)}; --help lists the keys")
    if dataclasses.is_dataclass(getattr(owner, last)):
        raise ConfigError(f"{key!r} is a group; set one of its keys: {key}.KEY=VALUE")
    return owner, fields[last]


def _hint(config: Any, key: str) -> str:
    from seqgen.key_hints import did_you_mean  # only for this message

    groups = [field.name for field in dataclasses.fields(config) if is_group(type(config), field.name)]
    return did_you_mean(key, [*groups, *(name for name, field, _ in known_keys(config) if field.name != "components")])


def annotation_of(config: Any, key: str) -> Any:
    """The type of the field that a dotted key names; see ``locate``."""
    owner, field = locate(config, key)
    return typing.get_type_hints(type(owner))[field.name]
