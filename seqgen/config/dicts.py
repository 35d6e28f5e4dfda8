"""Configurations as plain dicts, as they are saved in YAML and JSON files."""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from seqgen.config import TrainConfig
from seqgen.config.keys import holds_component
from seqgen.config.values import LARGEST, check_ranges, describe, fits
from seqgen.errors import ConfigError, nearest, shown
from seqgen.registry import DECODING_COMPONENTS, GROUPS, Registry

R = TypeVar("R")

_NAME = "_name"  # under which a chosen component's name is saved with its values


def to_dict(config: Any) -> dict[str, Any]:
    """Turn a configuration into plain values, as YAML can hold them.

    Args:
        config: the configuration.

    Returns:
        Values by key; the dict of a chosen component also has its name, under ``_name``.
    """
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            registry = GROUPS.get(field.name)
            named = {_NAME: registry.of(value).name} if registry is not None and holds_component(field) else {}
            plain[field.name] = {**named, **to_dict(value)}
        else:
            plain[field.name] = copy.copy(value) if isinstance(value, list | dict) else value
    return plain


def from_dict(schema: type[R], plain: Mapping[str, Any], where: str) -> R:
    """Turn plain values back into a configuration.

    Args:
        schema: the dataclass.
        plain: what ``to_dict`` returned; keys that are missing keep their defaults.
        where: the file that the values come from, for messages.

    Returns:
        An instance of ``schema``.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or is out of its range.
    """
    if schema is TrainConfig:
        _record_user_files(plain)
    hints = typing.get_type_hints(schema)
    fields = {field.name: field for field in dataclasses.fields(schema)}  # type: ignore[arg-type]
    values = {}
    for key, value in plain.items():
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {shown(key)} of {schema.__name__}{nearest(str(key), fields)}")
        if holds_component(fields[key]) and key in GROUPS:
            values[key] = _component_from_dict(GROUPS[key], value, where)
        elif key == "user_dir" and isinstance(value, str):  # in runs of older versions
            values[key] = [value] if value else []
        elif dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {key} must hold keys and values, not {shown(value)}")
            values[key] = from_dict(typing.cast(type[Any], hints[key]), value, where)
        elif not fits(value, hints[key]):
            raise ConfigError(f"{where}: {key}={shown(value)} should be {describe(hints[key])}")
        else:
            values[key] = float(value) if hints[key] is float and abs(value) < LARGEST else value
    config = schema(**values)
    try:
        check_ranges(config)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return config


def _record_user_files(plain: Mapping[str, Any]) -> None:
    """Tell the registries which file registered each of the user's own components when the run was made."""
    registries = {**GROUPS, **{group: registry for group, (registry, _) in DECODING_COMPONENTS.items()}}
    common = plain.get("common")
    recorded = common.get("user_files") if isinstance(common, Mapping) else None
    for key, file in recorded.items() if isinstance(recorded, Mapping) else ():
        group, _, name = str(key).partition(".")
        if group in registries and isinstance(file, str):
            registries[group].record_file(name, file)


def _component_from_dict(registry: Registry, value: Any, where: str) -> Any:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get(_NAME), str):
        raise ConfigError(f"{where}: {registry.group} has no key {_NAME}, the name of its {registry.kind}")
    try:
        entry = registry.entry(value[_NAME])
    except ConfigError as error:
        hint = (
            "" if "common.user_dir=" in str(error) else "; your own components are imported with common.user_dir=PATH"
        )
        raise ConfigError(f"{where}: {error}{hint}") from None
    return from_dict(entry.config, {key: item for key, item in value.items() if key != _NAME}, where)
