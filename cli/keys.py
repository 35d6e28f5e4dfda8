"""The keys and components of a command, for its help and for shell completion."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from seqgen.config import SINGLE_COMPONENTS
from seqgen.config.compose import chosen_components, component_groups
from seqgen.config.keys import annotation_of, is_group, known_keys, other_names
from seqgen.registry import DECODING_COMPONENTS, GROUPS, TRAINING_COMPONENTS, Entry, Registry

CONFIG_KEY = "config"
"""The key whose values are files with keys."""
HIDDEN = ("components", "user_files")
"""Fields that are set by the keys of components and by training, not by the user."""


@dataclass(frozen=True)
class Key:
    """A key that a user can set.

    Attributes:
        name: the whole key, such as ``optimization.lr``.
        default: its default.
        field: the field of the configuration.
        annotation: the type of the field.
        owners: names of the components that have the key; empty for a key that is always there.
    """

    name: str
    default: Any
    field: dataclasses.Field[Any]
    annotation: Any
    owners: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """The effect of the value, and its choices."""
        names = " | ".join(choice or "empty" for choice in self.field.metadata.get("choices") or ())
        return str(self.field.metadata.get("help", "")) + (f" ({names})" if names else "")

    @property
    def role(self) -> str:
        """The role of a file or folder that the value names, see ``option``; empty if it names none."""
        return str(self.field.metadata.get("role", ""))

    @property
    def other_names(self) -> tuple[str, ...]:
        """The names of the key in other toolkits."""
        return other_names(self.field)


@dataclass(frozen=True)
class Chooser:
    """A key whose values are names of components.

    Attributes:
        name: the key, such as ``model`` or ``generation.search``.
        group: the prefix of the components' keys, such as ``model`` or ``search``.
        registry: the components.
        default: the name that is used by default; empty if there is none.
    """

    name: str
    group: str
    registry: Registry
    default: str = ""

    def entries(self) -> list[Entry]:
        """The components that a user can choose, sorted by name."""
        return [entry for entry in self.registry.entries() if entry.can_be_chosen]

    def names(self) -> list[str]:
        """The names of the components and of their presets."""
        return sorted(name for entry in self.entries() for name in (entry.name, *entry.presets))

    def keys_of(self, name: str) -> list[Key]:
        """The keys of a component, with the values of a preset if ``name`` is one."""
        config, owner = self.registry.config(name), self.registry.entry(name).name
        prefix = f"{self.group}." if self.group in (*GROUPS, *SINGLE_COMPONENTS) else f"{self.group}.{owner}."
        return list(_keys(config, prefix, (owner,)))

    def component_keys(self) -> list[Key]:
        """The keys of all components; components with the same key, default and help share one."""
        merged: dict[tuple[str, str, str], Key] = {}
        for entry in self.entries():
            for key in self.keys_of(entry.name):
                same = (key.name, repr(key.default), key.help)
                before = merged[same].owners if same in merged else ()
                merged[same] = dataclasses.replace(key, owners=(*before, entry.name))
        return list(merged.values())


def choosers(schema: type) -> list[Chooser]:
    """The keys of a command that choose components.

    Args:
        schema: the root dataclass of its configuration.
    """
    defaults = chosen_components(schema, [])
    names = [field.name for field in dataclasses.fields(schema)]
    found = [Chooser(name, name, GROUPS[name], defaults.get(name, "")) for name in names if is_group(schema, name)]
    of_training = TRAINING_COMPONENTS.items() if "training" in names else ()
    found += [Chooser(f"training.{key}", group, registry) for group, (registry, key) in of_training]
    return found + decoding_choosers(schema)


def decoding_choosers(schema: type) -> list[Chooser]:
    """The keys of a command that choose decoding components.

    Args:
        schema: the root dataclass of its configuration.
    """
    if groups := component_groups(schema):
        chosen = [(group, *DECODING_COMPONENTS[group]) for group in groups]
        return [Chooser(f"generation.{key}", group, registry) for group, registry, key in chosen]
    names = {field.name for field in dataclasses.fields(schema)}  # the command does not decode, but checks components
    return [Chooser(group, group, registry) for group, (registry, _) in DECODING_COMPONENTS.items() if group in names]


def keys_of(schema: type) -> list[Key]:
    """The keys of a command, without those of components.

    Args:
        schema: the root dataclass of its configuration.
    """
    return list(_keys(schema()))


def every_key(schema: type) -> list[Key]:
    """The keys of a command and of all components that it can use.

    Args:
        schema: the root dataclass of its configuration.
    """
    return [*keys_of(schema), *(key for one in choosers(schema) for key in one.component_keys())]


def _keys(config: Any, prefix: str = "", owners: tuple[str, ...] = ()) -> Iterator[Key]:
    for name, field, value in known_keys(config):
        if field.name not in HIDDEN:
            yield Key(prefix + name, value, field, annotation_of(config, name), owners)


def is_switch(annotation: Any) -> bool:
    """True if a key's values are ``true`` and ``false``."""
    return annotation is bool or bool in typing.get_args(annotation)
