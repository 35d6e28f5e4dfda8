"""Build a typed configuration from ``key=value`` arguments, and convert configurations to and from plain dicts.

Hydra composes the dataclasses of ``seqgen.config`` with the chosen components (``model=fconv_tiny``). The code around
it ensures that no value is ignored or misread: every key must exist, keys cannot be added or deleted, and the value of
a string-typed key is used literally, whatever characters it contains.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seqgen.config import SINGLE_COMPONENTS, GenerateConfig, GenerationConfig, TrainConfig
from seqgen.errors import ConfigError, nearest, shown
from seqgen.registry import (
    COMBINATIONS,
    CRITERIA,
    LOGITS_PROCESSORS,
    LR_SCHEDULERS,
    MODELS,
    OBSERVERS,
    OPTIMIZERS,
    SEARCHES,
    STOPPING_RULES,
    TASKS,
    UTILITIES,
    Registry,
)

R = TypeVar("R")

GROUPS: dict[str, Registry] = {
    registry.group: registry for registry in (TASKS, MODELS, CRITERIA, OPTIMIZERS, LR_SCHEDULERS)
}
DECODING_COMPONENTS: dict[str, tuple[Registry, str]] = {
    "search": (SEARCHES, "search"),
    "combination": (COMBINATIONS, "combination"),
    "utility": (UTILITIES, "mbr"),
    "processor": (LOGITS_PROCESSORS, "processors"),
    "stopping": (STOPPING_RULES, "stopping_rules"),
    "observer": (OBSERVERS, "observers"),
}
"""What the keys of decoding components begin with, their registry, and the key of ``generation`` that names them."""

_ROOTS: dict[type, str] = {TrainConfig: "train", GenerateConfig: "generate"}
_NAME = "_name"  # under which a chosen component's name is saved beside its values
_ITEM = re.compile(  # of a list of texts: in quotes as a whole, or up to the next comma
    r"""\s*(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>(?:\\.|[^'\\])*)')\s*(?:,|\Z)|(?P<bare>[^,]*)(?:,|\Z)""",
    re.DOTALL,
)
LARGEST = 1 << 63
"""Whole numbers that a configuration can hold are smaller, as those of PyTorch are."""
_ESCAPES = {"n": "\n", "t": "\t"}


def compose(schema: type[R], overrides: Sequence[str]) -> R:
    """Build a configuration from its defaults and the user's overrides.

    Args:
        schema: the root dataclass.
        overrides: ``key=value`` arguments, such as ``model=fconv_tiny`` or ``dataset.max_tokens=4096``.

    Returns:
        An instance of ``schema`` in which every component group holds an instance of its own configuration class.

    Raises:
        ConfigError: a key, name or value does not exist, does not fit, or is out of its range.
    """
    pairs = [_split(override) for override in overrides]
    choices = [f"{key}={value}" for key, value in pairs if _is_group(schema, key)]
    of_components = [(key, value) for key, value in pairs if _is_component_key(schema, key)]
    values = [(key, value) for key, value in pairs if not _is_group(schema, key) and (key, value) not in of_components]
    name = _store(schema, dict(pair for pair in pairs if _is_group(schema, pair[0])))
    with initialize_config_module("seqgen.conf", version_base="1.3"):
        defaults = _run_hydra(name, choices)
        for key, _ in values:
            if typing.get_origin(_annotation(defaults, key)) is dict:
                raise ConfigError(f"{key!r} cannot be set as a whole; --help lists the keys")
        literal = [(key, value) for key, value in values if _is_text(_annotation(defaults, key))]
        typed = [f"{key}={value}" for key, value in values if (key, value) not in literal]
        config = _run_hydra(name, [*choices, *typed])
    for key, value in literal:
        owner, field = _locate(config, key)
        setattr(owner, field.name, _parse_text(value, _annotation(config, key)))
    for key, value in of_components:
        config.generation.components[key] = _parse_component_value(config.generation, key, value)
    check_ranges(config)
    return typing.cast(R, config)


def component_config(registry: Registry, name: str, generation: GenerationConfig, **flat: Any) -> Any:
    """The configuration of a decoding component: its preset or defaults, flat keys, and its own keys over them.

    Args:
        registry: has the component.
        name: a registered name or a preset.
        generation: has the component's own keys.
        flat: values by field that flat keys of ``generation`` gave.

    Raises:
        ConfigError: the name or a key is unknown, or a value has the wrong type or is out of its range.
    """
    config = registry.config(name)
    values = {**to_dict(config), **flat, **generation.component_values(registry.group, name)}
    return from_dict(type(config), values, f"the keys of {registry.kind} {name}")


def check_component_keys(generation: GenerationConfig, replaced: Collection[str] = ()) -> None:
    """Refuse keys of decoding components that are not in use.

    Args:
        generation: the configuration.
        replaced: groups, such as ``search``, whose component is an object that is not made from the configuration.

    Raises:
        ConfigError: the first such key, and the key that names its component.
    """
    for key in generation.components:
        _component_of(generation, key)
        if key.partition(".")[0] in replaced:
            raise ConfigError(
                f"{key!r} has no effect on a component that is given as an object; set it there, or give its name"
            )


def _component_of(generation: GenerationConfig, key: str) -> tuple[Registry, str, str]:
    """The registry, name and field that ``search.FIELD`` or ``processor.NAME.FIELD`` is about."""
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
    if not name or not field:
        raise ConfigError(
            f"{key!r} has no effect, because generation.{chooser} does not name its {registry.kind}; set "
            f"generation.{chooser}={wanted if group in SINGLE_COMPONENTS else f'[{wanted}]'}, or remove the key"
        )
    return registry, name, field


def _parse_component_value(generation: GenerationConfig, key: str, text: str) -> Any:
    """The value of a component's own key, of the type that its configuration declares."""
    registry, name, field = _component_of(generation, key)
    config = registry.config(name)
    known = {item.name for item in dataclasses.fields(config)}
    if field not in known:
        prefix = key.removesuffix(field)
        raise ConfigError(
            f"unknown key {key!r} of {registry.kind} {name}{nearest(field, known)}; there are: "
            f"{', '.join(prefix + item for item in sorted(known)) or 'none'}"
        )
    annotation = typing.get_type_hints(type(config))[field]
    value = _parse_text(text, annotation) if _is_text(annotation) else _parse_plain(key, text)
    if not _fits(value, annotation):
        raise ConfigError(f"{key}={text} should be {_describe(annotation)}")
    metadata = next(item.metadata for item in dataclasses.fields(config) if item.name == field)
    for item in value if isinstance(value, list) else [value]:
        _check_value(key, item, metadata)
    return value


def _parse_plain(key: str, text: str) -> Any:
    """A number, a truth value or a list of these, as Hydra reads them."""
    try:
        return OverridesParser.create().parse_override(f"{key}={text}").value()
    except HydraException:
        return text


def _is_component_key(schema: type, key: str) -> bool:
    return "." in key and key.partition(".")[0] in DECODING_COMPONENTS and decodes(schema)


def decodes(schema: type) -> bool:
    """Whether a command's configuration has all keys of decoding."""
    fields = {field.name for field in dataclasses.fields(schema)}
    return "generation" in fields and typing.get_type_hints(schema)["generation"] is GenerationConfig


def given_values(config: Any, group: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The values of one group that the user gave, also where they are the defaults.

    Args:
        config: what ``compose`` made of the overrides.
        group: name of the group, such as ``"generation"``.
        overrides: ``key=value`` arguments.
    """
    keys = [_split(override)[0].partition(".") for override in overrides]
    names = dict.fromkeys(key for owner, _, key in keys if owner == group and key)
    if group == "generation" and any(owner in DECODING_COMPONENTS for owner, _, _ in keys):
        names["components"] = None
    return {name: getattr(getattr(config, group), name) for name in names}


def text_values(overrides: Sequence[str], key: str) -> list[str]:
    """The texts that a key is given, whose value is a text or a list of texts; the last override counts."""
    given = [value for name, _, value in (override.partition("=") for override in overrides) if name == key]
    found = _parse_text(given[-1], list[str]) if given else []
    return [found] if isinstance(found, str) else found or []


def text_list(items: Sequence[str]) -> str:
    """Texts as the value of an override, from which they are read back as they are."""
    escaped = (item.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for item in items)
    return "[" + ",".join(f'"{item}"' for item in escaped) + "]"


def chosen_components(schema: type, overrides: Sequence[str]) -> dict[str, str]:
    """The name that is chosen in each component group, by the user or by default: ``{"model": "fconv_tiny", ...}``."""
    pairs = (_split(override) for override in overrides)
    return {**_default_choices(schema), **{key: value for key, value in pairs if _is_group(schema, key)}}


def expand_sweep(schema: type, overrides: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Expand overrides with several values (``model=a,b common.seed=1,2``) into their product.

    The value of a free string-typed key is one value, commas and all.

    Args:
        schema: the root dataclass.
        overrides: ``key=value`` arguments.

    Yields:
        The overrides of each job, and a folder name made of the values that are swept.
    """
    pairs = [_split(override) for override in overrides]
    first = {key: value.split(",")[0] for key, value in pairs if _is_group(schema, key)}
    defaults: Any = compose(schema, [f"{key}={value}" for key, value in first.items()])
    alternatives = []
    for key, value in pairs:
        if _is_group(schema, key) or _choices(defaults, key):
            alternatives.append([f"{key}={part}" for part in value.split(",")])
        elif _is_text(_annotation(defaults, key)):
            alternatives.append([f"{key}={value}"])
        else:
            alternatives.append(_sweep_values(f"{key}={value}"))
    swept = [len(options) > 1 for options in alternatives]
    for job in itertools.product(*alternatives):
        label = ",".join(override for override, varies in zip(job, swept, strict=True) if varies)
        yield list(job), label.replace("/", "_") or "job"


def to_dict(config: Any) -> dict[str, Any]:
    """Turn a configuration into plain values that YAML can hold; a component carries its name under ``_name``."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            registry = GROUPS.get(field.name)
            named = {_NAME: registry.of(value).name} if registry is not None and _holds_component(field) else {}
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

    Raises:
        ConfigError: a key is unknown or a value has the wrong type.
    """
    if schema is TrainConfig:
        _record_user_files(plain)
    hints = typing.get_type_hints(schema)
    fields = {field.name: field for field in dataclasses.fields(schema)}  # type: ignore[arg-type]
    values = {}
    for key, value in plain.items():
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {shown(key)} of {schema.__name__}{nearest(str(key), fields)}")
        if _holds_component(fields[key]) and key in GROUPS:
            values[key] = _component_from_dict(GROUPS[key], value, where)
        elif key == "user_dir" and isinstance(value, str):  # as older runs have it
            values[key] = [value] if value else []
        elif dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {key} must hold keys and values, not {shown(value)}")
            values[key] = from_dict(typing.cast(type[Any], hints[key]), value, where)
        elif not _fits(value, hints[key]):
            raise ConfigError(f"{where}: {key}={shown(value)} should be {_describe(hints[key])}")
        else:
            values[key] = float(value) if hints[key] is float and abs(value) < LARGEST else value
    config = schema(**values)
    try:
        check_ranges(config)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return config


def _record_user_files(plain: Mapping[str, Any]) -> None:
    """Let the registries know which files a run records for components of the user's own."""
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
        raise ConfigError(f"{where}: {registry.group} does not name its {registry.kind} (key {_NAME})")
    try:
        entry = registry.entry(value[_NAME])
    except ConfigError as error:
        hint = (
            "" if "common.user_dir=" in str(error) else "; your own components are imported with common.user_dir=PATH"
        )
        raise ConfigError(f"{where}: {error}{hint}") from None
    return from_dict(entry.config, {key: item for key, item in value.items() if key != _NAME}, where)


def check_ranges(config: Any, prefix: str = "") -> None:
    """Check every value against the choices and the range that its field declares.

    Args:
        config: a configuration, checked with everything below it.
        prefix: what its keys begin with, for messages.

    Raises:
        ConfigError: a value is not among the choices, out of range, or no finite number.
    """
    for field in dataclasses.fields(config):
        value, key = getattr(config, field.name), prefix + field.name
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check_ranges(value, f"{key}.")
        for item in value if isinstance(value, list) else [value]:
            _check_value(key, item, field.metadata)


def _check_value(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    choices, minimum, maximum = (metadata.get(name) for name in ("choices", "minimum", "maximum"))
    if choices and value is not None and value not in choices:
        raise ConfigError(f"{key}={str(value)[:80]} is none of: {', '.join(choices)}{nearest(str(value), choices)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value} is not a finite number")
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ConfigError(f"{key}={shown(value)} is a number of more than 64 bits; its largest value is {LARGEST - 1}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if minimum is not None and not value >= minimum:
            raise ConfigError(f"{key}={value} is below its minimum, {minimum}")
        if maximum is not None and not value <= maximum:
            raise ConfigError(f"{key}={value} is above its maximum, {maximum}")


def known_keys(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Every key of a configuration, with its field and its value."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from known_keys(value, f"{prefix}{field.name}.")
        elif not _holds_component(field) or field.name not in GROUPS:
            yield prefix + field.name, field, value


def _split(override: str) -> tuple[str, str]:
    if override.startswith(("+", "~")):
        raise ConfigError(f"{override!r}: keys can be neither added nor deleted; give a known key as key=value")
    key, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.\-]*", key):
        raise ConfigError(f"{override!r} is not of the form key=value; --help lists the keys")
    if key == "hydra" or key.startswith("hydra."):
        raise ConfigError(f"{override!r}: hydra's own keys cannot be set; --help lists the keys there are")
    return key, value


def _is_group(schema: type, key: str) -> bool:
    return key in GROUPS and key in {field.name for field in dataclasses.fields(schema) if _holds_component(field)}


def _holds_component(field: dataclasses.Field[Any]) -> bool:
    return field.type in (Any, "Any")


def _store(schema: type, choices: Mapping[str, str]) -> str:
    """Put the root schema and the chosen components where Hydra finds them; return the root's name."""
    store = ConfigStore.instance()
    name = _ROOTS.get(schema, schema.__name__)
    store.store(name=f"{name}_schema" if schema in _ROOTS else name, node=schema)
    for group, choice in {**_default_choices(schema), **choices}.items():
        store.store(group=group, name=choice, node=GROUPS[group].config(choice))
    return name


def _default_choices(schema: type) -> dict[str, str]:
    if schema not in _ROOTS:
        return {}
    text = resources.files("seqgen.conf").joinpath(f"{_ROOTS[schema]}.yaml").read_text(encoding="utf-8")
    groups = [default for default in OmegaConf.create(text).defaults if not isinstance(default, str)]
    return {str(group): str(choice) for default in groups for group, choice in default.items()}


def _run_hydra(name: str, overrides: list[str]) -> Any:
    try:
        return OmegaConf.to_object(hydra_compose(name, overrides=overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error, overrides)) from None


def _explain(error: Exception, overrides: list[str]) -> str:
    """Say in one sentence which override Hydra or OmegaConf could not take."""
    cause = error.__cause__ or error
    key = getattr(cause, "full_key", None)
    culprit = getattr(error, "override", None) or next((o for o in overrides if key and o.startswith(key)), None)
    reason = str(cause).strip().splitlines()[0]
    if culprit is None:
        culprit = next((o for o in overrides if o in str(error)), " ".join(overrides))
    return f"{culprit!r} cannot be used: {reason[:1].lower()}{reason[1:]}"


def _locate(config: Any, key: str) -> tuple[Any, dataclasses.Field[Any]]:
    """Find the dataclass instance and the field that a dotted key names."""
    *path, last = key.split(".")
    owner = config
    for part in path:
        owner = getattr(owner, part, None) if dataclasses.is_dataclass(owner) else None
    fields = {field.name: field for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else {}
    if last not in fields:
        known = [name for name, _, _ in known_keys(config)]
        raise ConfigError(f"unknown key {key!r}{nearest(key, known)}; --help lists the keys")
    if dataclasses.is_dataclass(getattr(owner, last)):
        raise ConfigError(f"{key!r} is a group; set one of its keys: {key}.KEY=VALUE")
    return owner, fields[last]


def _annotation(config: Any, key: str) -> Any:
    owner, field = _locate(config, key)
    return typing.get_type_hints(type(owner))[field.name]


def _choices(config: Any, key: str) -> Sequence[str] | None:
    return _locate(config, key)[1].metadata.get("choices")


def _is_text(annotation: Any) -> bool:
    """Whether values of a type are taken literally: ``str``, ``str | None``, ``list[str]``."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return any(_is_text(part) for part in typing.get_args(annotation))
    return annotation is str or (typing.get_origin(annotation) is list and typing.get_args(annotation) == (str,))


def _parse_text(value: str, annotation: Any) -> str | list[str] | None:
    if typing.get_origin(annotation) is list:
        if value.startswith("[") and value.endswith("]"):
            return list(_parse_items(value[1:-1]))
        return [value] if value else []
    if value == "null" and annotation is not str:
        return None
    return value


def _parse_items(text: str) -> Iterator[str]:
    """Separate the items of a list: of ``a b, "c, d ", 's`` they are ``a b``, ``c, d `` and ``'s``."""
    for found in _ITEM.finditer(text):
        quoted = found["double"] if found["double"] is not None else found["single"]
        if quoted is not None:
            yield re.sub(r"\\([nt\"'\\])", lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted)
        elif bare := found["bare"].strip():
            yield bare


def _sweep_values(override: str) -> list[str]:
    try:
        parsed = OverridesParser.create().parse_override(override)
        return (
            [f"{parsed.key_or_group}={item}" for item in parsed.sweep_string_iterator()]
            if (parsed.is_sweep_override())
            else [override]
        )
    except HydraException as error:
        raise ConfigError(_explain(error, [override])) from None


def _fits(value: Any, annotation: Any) -> bool:
    if isinstance(annotation, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if typing.get_origin(annotation) is list:
        return isinstance(value, list) and all(_fits(item, typing.get_args(annotation)[0]) for item in value)
    if annotation is type(None):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(annotation, type) and isinstance(value, annotation)


def _describe(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)
