"""Keys of the decoding components themselves: ``search.FIELD``, ``processor.NAME.FIELD`` and the like."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection
from typing import Any

from seqgen.config import SINGLE_COMPONENTS, GenerationConfig
from seqgen.config.values import check_value, describe, from_dict, parse_value, to_dict
from seqgen.errors import ConfigError, nearest
from seqgen.registry import DECODING_COMPONENTS, Registry


class UnparsedText(str):
    """A value as the user typed it, whose type is not known before the models are loaded: they name its component."""


def component_config(registry: Registry, name: str, generation: GenerationConfig, group: str = "", **flat: Any) -> Any:
    """Make the configuration of a decoding component.

    Its own keys (``search.groups``) override flat keys (``generation.diverse_beam_groups``), which override its preset
    or defaults.

    Args:
        registry: has the component.
        name: a registered name or a preset.
        generation: has the values of the component's own keys.
        group: the prefix of these keys, by default the registry's.
        flat: the values of flat keys, by field of the component's configuration.

    Returns:
        An instance of the component's configuration class.

    Raises:
        ConfigError: the name or a key is unknown, or a value has the wrong type or is out of its range.
    """
    config = registry.config(name)
    values = {**to_dict(config), **flat, **generation.component_values(group or registry.group, name)}
    return from_dict(type(config), values, f"the keys of {registry.kind} {name}")


def check_component_keys(generation: GenerationConfig, replaced: Collection[str] = ()) -> None:
    """Refuse keys of decoding components that are not in use.

    Args:
        generation: the configuration.
        replaced: groups whose component is given as an object, such as ``search``; their keys have no effect.

    Raises:
        ConfigError: the first such key, and the key that names its component.
    """
    for key in generation.components:
        component_of_key(generation, key)
        if key.partition(".")[0] in replaced:
            raise ConfigError(
                f"{key!r} has no effect on a component that is given as an object; set it there, or give its name"
            )


def is_component_key(schema: type, key: str) -> bool:
    """Whether a key is one of a decoding component, and the command decodes."""
    return "." in key and key.partition(".")[0] in DECODING_COMPONENTS and decodes(schema)


def decodes(schema: type) -> bool:
    """Whether a command's configuration has the whole group ``generation``."""
    fields = {field.name for field in dataclasses.fields(schema)}
    return "generation" in fields and issubclass(typing.get_type_hints(schema)["generation"], GenerationConfig)


def component_of_key(generation: GenerationConfig, key: str) -> tuple[Registry, str, str]:
    """Find the component that a key belongs to.

    Args:
        generation: names the components in use.
        key: ``search.FIELD``, ``processor.NAME.FIELD`` or the like.

    Returns:
        The component's registry, its name, and the field of its configuration.

    Raises:
        ConfigError: no component in use has such keys.
    """
    group, _, rest = key.partition(".")
    if group not in DECODING_COMPONENTS or not rest:
        raise ConfigError(f"unknown key {key!r}{nearest(group, DECODING_COMPONENTS)}; --help lists the keys")
    registry, chooser = DECODING_COMPONENTS[group]
    chosen = getattr(generation, chooser)
    if group in SINGLE_COMPONENTS:
        name, field = chosen or (generation.ensemble_average if group == "combination" else ""), rest
        wanted = "NAME"
    else:
        wanted, _, field = rest.partition(".")
        name = wanted if wanted in chosen else ""
    if chosen and not field:
        raise ConfigError(f"{key!r} is not a key of a {registry.kind}; its keys begin with '{group}.{chosen[0]}.'")
    if not name or not field:
        raise ConfigError(
            f"{key!r} has no effect, because generation.{chooser} does not name its {registry.kind}; set "
            f"generation.{chooser}={wanted if group in SINGLE_COMPONENTS else f'[{wanted}]'}, or remove the key"
        )
    return registry, name, field


def may_come_from_a_model(config: Any, key: str) -> bool:
    """Whether a component is not named by the user, but possibly by the settings of the models to be loaded.

    Args:
        config: the configuration of a command; one that has ``path`` loads models.
        key: a key of the component.
    """
    group = key.partition(".")[0]
    return hasattr(config, "path") and not getattr(config.generation, DECODING_COMPONENTS[group][1])


def parse_components(generation: GenerationConfig) -> dict[str, Any]:
    """Read the values of components' keys that are still text; the components in use are known now.

    Args:
        generation: the user's settings over those of the models.

    Returns:
        All values by key.

    Raises:
        ConfigError: a key is unknown or its component is not in use, or a value does not fit.
    """
    return {
        key: parse_component_value(generation, key, value) if isinstance(value, UnparsedText) else value
        for key, value in generation.components.items()
    }


def component_field(generation: GenerationConfig, key: str) -> tuple[dataclasses.Field[Any], Any]:
    """Find the field that a component's own key sets.

    Args:
        generation: names the components in use.
        key: the key, see ``component_of_key``.

    Returns:
        The field, and its type.

    Raises:
        ConfigError: the key is unknown or its component is not in use.
    """
    registry, name, field = component_of_key(generation, key)
    config = registry.config(name)
    fields = {item.name: item for item in dataclasses.fields(config)}
    if field not in fields:
        prefix = key.removesuffix(field)
        raise ConfigError(
            f"unknown key {key!r} of {registry.kind} {name}{nearest(field, fields)}; the keys are: "
            f"{', '.join(prefix + item for item in sorted(fields)) or 'none'}"
        )
    return fields[field], typing.get_type_hints(type(config))[field]


def parse_component_value(generation: GenerationConfig, key: str, text: str) -> Any:
    """Read the value of a component's own key.

    Args:
        generation: names the components in use.
        key: the key, see ``component_of_key``.
        text: what the user typed.

    Returns:
        The value, of the type that the component's configuration declares.

    Raises:
        ConfigError: the key is unknown or its component is not in use, or the value does not fit.
    """
    field, annotation = component_field(generation, key)
    try:
        value = parse_value(key, text, annotation)
    except ValueError:
        raise ConfigError(f"{key}={text} should be {describe(annotation)}") from None
    for item in value if isinstance(value, list) else [value]:
        check_value(key, item, field.metadata)
    return value
