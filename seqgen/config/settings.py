"""Settings of decoding as immutable layers of keys, and their resolved form.

From the bottom to the top: the model's settings, those of the part of a task that is decoded, those of the user, those
of a call. ``seqgen.decoding.resolution`` resolves them, once for all calls with the same settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from functools import cached_property
from typing import Any, NamedTuple

from seqgen.config.generation import FastConfig, GenerationConfig, keys_tagged, name_in_use
from seqgen.config.options import ENSEMBLE
from seqgen.config.values import DEFAULTS, typed_values
from seqgen.registry import DECODING_COMPONENTS

MODEL, USER, CALL = "model", "user", "call"
"""The names of layers."""


@dataclass(frozen=True, eq=False)
class Layer:
    """Some settings of one origin.

    Attributes:
        name: the origin: ``model``, ``part``, ``user`` or ``call``.
        values: values by whole key.
    """

    name: str
    values: Mapping[str, Any]

    @classmethod
    def checked(cls, name: str, values: Mapping[str, Any]) -> Layer:
        """The layer of values that come from Python; those of a component are checked where it is built.

        Args:
            name: see the class.
            values: values by key, see ``Settings``.

        Raises:
            ConfigError: a key is unknown, or a value has the wrong type or range.
        """
        whole = by_whole_key(values)
        for group, schema in (("generation", GenerationConfig), ("fast", FastConfig)):
            of_group = {key.removeprefix(f"{group}."): whole[key] for key in whole if key.startswith(f"{group}.")}
            names = {key: names_in(key, value) for key, value in of_group.items()}
            for key, value in typed_values(schema, names, group).items():
                if names[key] is of_group[key]:
                    whole[f"{group}.{key}"] = value
        return cls(name, whole)

    @cached_property
    def comparable(self) -> tuple[Any, ...]:
        """Equal for layers with the same origin, values and objects."""
        return self.name, _comparable(self.values)


class _Compared:
    """Compared and hashed by ``comparable``, in which objects stand for themselves."""

    @cached_property
    def comparable(self) -> tuple[Any, ...]:
        """Equal for equal objects; it can be hashed."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.comparable == other.comparable

    def __hash__(self) -> int:
        return hash(self.comparable)


class Settings(_Compared):
    """An immutable stack of layers, in which a layer overrides those below it.

    A key is ``generation.beam``, ``search.groups`` (of a component) or ``fast.use_cache``. Whoever gives settings may
    leave out ``generation.``, and may give the keys of components together, as ``components``. A value has the type of
    its key; those of keys that name components may also be objects (``Component.setting``).

    Args:
        layers: the layers, the lowest first.
    """

    def __init__(self, *layers: Layer):
        self.layers = layers

    def with_layer(self, name: str, values: Mapping[str, Any]) -> Settings:
        """These settings with another layer on top, which is checked; without values, these settings."""
        return self.plus(Layer.checked(name, values)) if values else self

    def plus(self, layer: Layer) -> Settings:
        """These settings with another layer on top, whose values are checked already."""
        return Settings(*self.layers, layer)

    def over(self, name: str, values: Mapping[str, Any]) -> Settings:
        """These settings with another layer below all others, which is checked."""
        return Settings(Layer.checked(name, values), *self.layers)

    @cached_property
    def values(self) -> dict[str, Any]:
        """The value of each key that a layer sets.

        The keys of a component are those of the component that was chosen when they were set: if a layer chooses
        another search, the keys ``search.KEY`` of the layers below it have no effect.
        """
        merged: dict[str, Any] = {}
        for layer in self.layers:
            merged = {**of_chosen_components(merged, layer.values), **layer.values}
        return merged

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; ``default`` if no layer sets it."""
        return self.values.get(_whole(key), default)

    def layer_of(self, key: str) -> str:
        """The name of the highest layer that sets a key; ``"default"`` if none does."""
        return next((layer.name for layer in reversed(self.layers) if _whole(key) in layer.values), "default")

    @property
    def generation(self) -> dict[str, Any]:
        """The values of the ``generation`` group, by the names of the fields of ``GenerationConfig``."""
        return as_fields(self.values)

    @property
    def fast(self) -> dict[str, Any]:
        """The values of the ``fast`` group, by the names of the fields of ``FastConfig``."""
        return {key.removeprefix("fast."): value for key, value in self.values.items() if key.startswith("fast.")}

    @cached_property
    def comparable(self) -> tuple[Any, ...]:
        """See the base class; settings are equal if they have the same layers."""
        return tuple(layer.comparable for layer in self.layers)


class ResolvedConfig(GenerationConfig):
    """The ``generation`` group that ``resolve`` makes: all keys are checked together, and none can be set later."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            raise FrozenInstanceError(f"cannot assign to {name} of resolved settings")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete {name} of resolved settings")


@dataclass(frozen=True, eq=False)
class ResolvedSettings(_Compared):
    """The settings of a decode, checked; two are equal if all keys have the same values and objects.

    Attributes:
        settings: the layers, without that of the model.
        generation: the values of all keys. A key whose value is an object has an empty value.
        fast: switches of optimizations.
        objects: the objects, by key; a list for a key that names several components.
        notes: notes for the user.
    """

    settings: Settings
    generation: ResolvedConfig
    fast: FastConfig
    objects: Mapping[str, Any]
    notes: tuple[str, ...]

    @cached_property
    def values(self) -> dict[str, Any]:
        """The values of all keys, by whole key."""
        return {
            **by_whole_key(vars(self.generation)),
            **{f"fast.{key}": value for key, value in vars(self.fast).items()},
        }

    @cached_property
    def comparable(self) -> tuple[Any, ...]:
        """See the base class."""
        return _comparable(self.values), _comparable(self.objects)

    @property
    def ensemble(self) -> dict[str, Any]:
        """The settings with which ``Translator`` makes the same ensemble of the same models."""
        cfg = self.generation
        prefixes = ("combination.", "source.")
        of_components = {key: value for key, value in cfg.components.items() if key.startswith(prefixes)}
        found = {key: getattr(cfg, key) for key in keys_tagged(ENSEMBLE)} | of_components
        if "combination" in self.objects:
            found["combination"] = self.objects["combination"]
        if specs := self.objects.get("member_sources"):
            found["member_sources"] = [spec or source for spec, source in zip(specs, cfg.member_sources, strict=True)]
        return found


def as_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of values by whole key, by the names of the fields of ``GenerationConfig``; other groups are left out."""
    copies = {key: _copied(value) for key, value in values.items()}
    found = {key.removeprefix("generation."): value for key, value in copies.items() if key.startswith("generation.")}
    of_components = {key: value for key, value in copies.items() if not key.startswith(("generation.", "fast."))}
    return {"components": of_components, **found} if of_components else found


def is_object(key: str, value: Any) -> bool:
    """True if the value of a key is an object in place of a component's name."""
    return getattr(value, "setting", "") == key and not isinstance(value, type)


def names_in(key: str, value: Any) -> Any:
    """The value of a key without objects: the value itself if it has none."""
    if isinstance(value, list) and any(is_object(key, item) for item in value):
        return [item for item in value if not is_object(key, item)]
    return "" if is_object(key, value) else value


def _whole(key: str) -> str:
    return key if "." in key else f"generation.{key}"


def by_whole_key(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by whole key, given by the names of fields or by whole key; lists and dicts are copied."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key == "components" and isinstance(value, Mapping) and all(isinstance(each, str) for each in value):
            found |= _copied(dict(value))
        else:
            found[_whole(key)] = _copied(value)
    return found


def _copied(value: Any) -> Any:
    """A list or dict that a caller cannot change later, or any other value itself."""
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def of_chosen_components(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a layer without the keys of components that the layer above it replaces by others."""
    kept = dict(below)
    for key in below:
        group, *rest = key.split(".")
        if group not in DECODING_COMPONENTS:
            continue
        chooser = DECODING_COMPONENTS[group][1]
        before = name_in_use(group, below.get(f"generation.{chooser}", DEFAULTS[chooser]))
        now = name_in_use(group, above.get(f"generation.{chooser}", before))
        if now is not before and now != before and not (isinstance(now, list) and rest[0] in now):
            del kept[key]
    return kept


class _Identity(NamedTuple):
    """Compares an object by its identity; the object lives as long as it is compared."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _comparable(value: Any) -> Any:
    """A value that can be hashed, and differs from a value of another type: 1, 1.0 and ``True`` are not the same."""
    if isinstance(value, Mapping):
        return frozenset((key, _comparable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    return (type(value), value) if value is None or isinstance(value, str | int | float) else _Identity(value)
