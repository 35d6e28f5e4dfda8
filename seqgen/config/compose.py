"""Build a typed configuration from ``key=value`` arguments.

The dataclasses of ``seqgen.config`` hold the configurations of the chosen components (``model=fconv_tiny``). Values are
read by ``parse_value``: that of a string-typed key is used literally, whatever characters it contains. Every key must
exist; keys cannot be added or deleted.

The keys of decoding components are ``search.FIELD``, ``processor.NAME.FIELD`` and the like.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar, cast, get_args, get_origin

from seqgen.config.generation import SINGLE_COMPONENTS, ComponentKeys, GenerationConfig, name_in_use
from seqgen.config.keys import annotation_of, is_group, locate, types_of
from seqgen.config.training import TrainConfig
from seqgen.config.values import DEFAULTS, check_value, describe, parse_value, split_argument, typed_values
from seqgen.core.errors import ConfigError, nearest
from seqgen.registry import DECODING_COMPONENTS, GROUPS, TRAINING_COMPONENTS, Registry

R = TypeVar("R")

IN_TRAINING = "criterion.decode."
"""The prefix of the decoding keys of a criterion that decodes."""

_COMPONENTS = {**DECODING_COMPONENTS, **TRAINING_COMPONENTS}

DEFAULT_COMPONENTS = {
    "task": "number_names",
    "model": "fconv_tiny",
    "criterion": "label_smoothed_cross_entropy",
    "optimizer": "adam",
    "lr_scheduler": "inverse_sqrt",
}
"""The component of each group that training uses unless the user chooses another."""


def compose(schema: type[R], overrides: Sequence[str]) -> R:
    """Build a configuration from its defaults and the user's overrides; see ``compose_given``.

    Returns:
        An instance of ``schema``; every component group holds an instance of the component's configuration class.
    """
    return compose_given(schema, overrides)[0]


def compose_given(schema: type[R], overrides: Sequence[str]) -> tuple[R, dict[str, Any]]:
    """Build a configuration, and collect the settings of decoding that the user gives.

    A value is parsed and checked here by the option that declares it, and nowhere else.

    Args:
        schema: the root dataclass.
        overrides: ``key=value`` arguments, such as ``model=fconv_tiny`` or ``dataset.max_tokens=4096``.

    Returns:
        The configuration, see ``compose``; and by whole key the given values of the groups ``generation`` and
        ``fast`` and of decoding components, also those that equal the defaults.

    Raises:
        ConfigError: a key or name does not exist, or a value has the wrong type or is out of its range.
    """
    pairs = [split_argument(override) for override in overrides]
    config: Any = schema()
    for group, name in chosen_components(schema, overrides).items():
        if "," in name:
            raise ConfigError(f"{group}={name} has several names; seqgen-train -m trains one run with each of them")
        setattr(config, group, GROUPS[group].config(name))
    given: dict[str, Any] = {}
    of_components: list[tuple[ComponentKeys, str, str]] = []
    for key, value in pairs:
        if is_group(schema, key):
            continue
        chooser, component_key = _component_key(config, key)
        if chooser is None:
            owner, field = locate(config, key)
            parsed = _parsed(config, key, value)
            check_value(key, parsed, field.metadata)
            setattr(owner, field.name, parsed)
            if key.startswith("fast.") or (key.startswith("generation.") and field.name in DEFAULTS):
                given[key] = parsed
        else:
            of_components.append((chooser, component_key, value))
    for chooser, key, value in of_components:
        is_given = chooser is getattr(config, "generation", None)
        in_criterion = isinstance(chooser, GenerationConfig) and not is_given
        with named_in_training() if in_criterion else contextlib.nullcontext():
            # the settings of models, which are loaded later, may name a component that the user does not name
            unknown = hasattr(config, "path") and not getattr(chooser, _COMPONENTS[key.partition(".")[0]][1])
            parsed = UnparsedText(value) if unknown else parse_component_value(chooser, key, value)
        chooser.components[key] = parsed
        if is_given:
            given[key] = parsed
    return cast(R, config), given


def _component_key(config: Any, key: str) -> tuple[ComponentKeys | None, str]:
    """The group that has chosen the component to which a key belongs, and the key without the group's prefix.

    ``search.groups`` belongs to ``generation``, ``criterion.decode.search.groups`` to the options of a criterion that
    decodes, and ``training_observer.NAME.KEY`` to ``training``; other keys belong to none.
    """
    if key.partition(".")[0] in TRAINING_COMPONENTS and hasattr(config, "training"):
        return config.training, key
    if is_component_key(type(config), key):
        return config.generation, key
    rest, options = key.removeprefix(IN_TRAINING), getattr(getattr(config, "criterion", None), "decode", None)
    if rest != key and isinstance(options, GenerationConfig) and is_component_key(TrainConfig, rest):
        return options, rest
    return None, key


@contextlib.contextmanager
def named_in_training() -> Iterator[None]:
    """In errors, give the keys ``generation.KEY`` the names that they have in training, ``criterion.decode.KEY``."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error).replace("generation.", IN_TRAINING)) from None


def chosen_components(schema: type, overrides: Sequence[str]) -> dict[str, str]:
    """The name that is chosen in each component group, by the user or by default: ``{"model": "fconv_tiny", ...}``.

    Args:
        schema: the root dataclass.
        overrides: ``key=value`` arguments.
    """
    defaults = DEFAULT_COMPONENTS if schema is TrainConfig else {}
    pairs = map(split_argument, overrides)
    return {**defaults, **{key: value for key, value in pairs if is_group(schema, key)}}


def _parsed(config: Any, key: str, value: str) -> Any:
    """Read the value of a key.

    Raises:
        ConfigError: it does not fit; the message names the key and says what values it takes.
    """
    annotation = annotation_of(config, key)
    if key.rpartition(".")[2] in ("components", "user_files"):  # set by other keys, and by training
        raise ConfigError(f"{key!r} cannot be set as a whole; set single keys, which --help lists")
    try:
        return parse_value(key, value, annotation)
    except ValueError:
        wrong = f"'{key}={value[:80]}' cannot be used: the value should be {describe(annotation)}"
        raise ConfigError(wrong + _advice(config, key, value, annotation)) from None


def _advice(config: Any, key: str, value: str, annotation: Any) -> str:
    """The way to give several values, such as ``1,2``, as the end of a message."""
    if "," not in value or value.startswith(("[", "{")):
        return ""
    if float in (annotation, *get_args(annotation)) and re.fullmatch(r"-?0,\d+", value):
        return f"; write {key}={value.replace(',', '.')}"
    if get_origin(annotation) is list:
        return f"; write {key}=[{value}]"
    if isinstance(config, TrainConfig):
        return "; seqgen-train -m trains with each of several values"
    return f"; seqgen-tune tune.{key}={value} decodes with each value" if key.startswith("generation.") else ""


class UnparsedText(str):
    """A value as the user typed it, whose type is not known before the models are loaded: they name its component."""


def component_config(registry: Registry, name: str, chooser: ComponentKeys) -> Any:
    """Make the configuration of a component.

    Its keys (``combination.weights``) override its preset or defaults.

    Args:
        registry: has the component.
        name: a registered name or a preset.
        chooser: has the values of the component's keys.

    Returns:
        An instance of the component's configuration class.

    Raises:
        ConfigError: the name or a key is unknown, or a value has the wrong type or is out of its range.
    """
    config, values = registry.config(name), copy.deepcopy(chooser.component_values(registry.group, name))
    return dataclasses.replace(config, **typed_values(type(config), values, f"the keys of {registry.kind} {name}"))


def check_component_keys(generation: GenerationConfig, replaced: Collection[str] = ()) -> None:
    """Refuse keys of decoding components that are not in use or do not have them.

    Args:
        generation: the configuration.
        replaced: groups whose component is given as an object, such as ``search``; their keys have no effect.

    Raises:
        ConfigError: names the first such key.
    """
    for key in generation.components:
        if key.partition(".")[0] in replaced:
            raise ConfigError(
                f"{key!r} has no effect on a component that is given as an object; set it there, or give a name instead"
            )
        registry, name, _ = component_of_key(generation, key)
        component_config(registry, name, generation)


def is_component_key(schema: type, key: str) -> bool:
    """True if a key is one of a decoding component that the command can choose."""
    return "." in key and key.partition(".")[0] in component_groups(schema)


def component_groups(schema: type) -> list[str]:
    """The groups of the decoding components that a command can choose by keys of its group ``generation``.

    Args:
        schema: the root dataclass of its configuration.
    """
    if "generation" not in {field.name for field in dataclasses.fields(schema)}:
        return []
    choosers = {field.name for field in dataclasses.fields(types_of(schema)["generation"])}
    return [group for group, (_, chooser) in DECODING_COMPONENTS.items() if chooser in choosers]


def component_of_key(chooser: ComponentKeys, key: str) -> tuple[Registry, str, str]:
    """Find the component that a key belongs to.

    Args:
        chooser: names the components in use.
        key: ``search.FIELD``, ``processor.NAME.FIELD`` or the like.

    Returns:
        The component's registry, its name, and the field of its configuration.

    Raises:
        ConfigError: no component in use has such keys.
    """
    group, _, rest = key.partition(".")
    if group not in _COMPONENTS or not rest:
        raise ConfigError(f"unknown key {key!r}{nearest(group, _COMPONENTS)}; --help lists the keys")
    registry, choice = _COMPONENTS[group]
    chosen = getattr(chooser, choice)
    if group in SINGLE_COMPONENTS:
        wanted, name, field = "NAME", name_in_use(group, chosen), rest
    else:
        wanted, _, field = rest.partition(".")
        name = wanted if wanted in chosen else ""
    if chosen and not field:
        raise ConfigError(f"{key!r} is not a key of a {registry.kind}; its keys begin with '{group}.{chosen[0]}.'")
    if not name or not field:
        choice = f"{'training' if group in TRAINING_COMPONENTS else 'generation'}.{choice}"
        raise ConfigError(
            f"{key!r} has no effect, because {choice} does not name its {registry.kind}; set "
            f"{choice}={wanted if group in SINGLE_COMPONENTS else f'[{wanted}]'}, or remove the key"
        )
    return registry, name, field


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


def parse_component_value(chooser: ComponentKeys, key: str, text: str) -> Any:
    """Read the value of a component's key.

    Args:
        chooser: names the components in use.
        key: the key, see ``component_of_key``.
        text: what the user typed.

    Returns:
        The value, of the type that the component's configuration declares.

    Raises:
        ConfigError: the key is unknown or its component is not in use, or the value does not fit.
    """
    registry, name, field = component_of_key(chooser, key)
    config = registry.config(name)
    metadata = {item.name: item.metadata for item in dataclasses.fields(config)}
    if field not in metadata:
        prefix = key.removesuffix(field)
        raise ConfigError(
            f"unknown key {key!r} of {registry.kind} {name}{nearest(field, metadata)}; the keys are: "
            f"{', '.join(prefix + item for item in sorted(metadata)) or 'none'}"
        )
    annotation = types_of(config.__class__)[field]
    try:
        value = parse_value(key, text, annotation)
    except ValueError:
        raise ConfigError(f"{key}={text[:80]} should be {describe(annotation)}") from None
    check_value(key, value, metadata[field])
    return value
