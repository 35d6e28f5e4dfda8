"""Values of a configuration: as text in ``key=value`` arguments, as plain dicts in files, types and ranges."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from seqgen.config.generation import KEYS_OF_ADDONS, FastConfig, GenerationConfig, check_installed, keys_tagged
from seqgen.config.keys import OTHER_VALUES, did_you_mean, holds_component, locate, other_names, types_of
from seqgen.config.options import Requirement
from seqgen.config.training import TrainConfig
from seqgen.core.errors import ConfigError, nearest, shown
from seqgen.registry import DECODING_COMPONENTS, GROUPS, TRAINING_COMPONENTS, Registry

R = TypeVar("R")

LARGEST = 1 << 63
"""Integers in a configuration are smaller than this, as PyTorch's are."""

LARGEST_FLOAT = 1e30
"""Other numbers are not larger than this, so that their sums and products with scores do not overflow in float32."""

_ITEM = re.compile(  # of a list of strings: in quotes as a whole, or up to the next comma
    r"""\s*(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>(?:\\.|[^'\\])*)')\s*(?:,|\Z)|(?P<bare>[^,]*)(?:,|\Z)""",
    re.DOTALL,
)
_WORDS: dict[Any, tuple[str, str, str]] = {
    int: ("a whole number", "whole numbers", "1,2"),
    float: ("a number", "numbers", "0.1,0.2"),
    bool: ("true or false", "true or false", "true,false"),
    str: ("text", "texts", "a,b"),
    type(None): ("null", "null", "null"),
}
"""The values of a type in words: one value, several values, and an example of several."""
_NAME = "_name"  # under which a chosen component's name is saved with its values
_ESCAPES = {"n": "\n", "t": "\t"}
_FILES_OF_KEYS: dict[str, str] = {}
"""The file that declared each of the user's keys when a run was made."""


def check_value(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Check the value of a key against the choices and the range that its field declares.

    Args:
        key: its key, for messages.
        value: the value; each item of a list is checked.
        metadata: that of the field, see ``seqgen.config.options``.

    Raises:
        ConfigError: it is not among the choices, out of range, no finite number, or text with a NUL.
    """
    for item in value if isinstance(value, list) else [value]:
        _check_item(key, item, metadata)


def _check_item(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    choices, minimum, maximum = (metadata.get(name) for name in ("choices", "minimum", "maximum"))
    if choices and value is not None and value not in choices:
        last = key.rpartition(".")[2]
        names = ", ".join(filter(None, choices)) + (", or empty" if "" in choices else "")
        other = OTHER_VALUES.get(str(value).lower())
        meant = nearest(other if other is not None and other in choices else str(value), choices)
        numeric = [field.name for field in dataclasses.fields(GenerationConfig) if last in other_names(field)]
        if numeric and str(value).replace(".", "").isdecimal():
            meant = f" (did you mean 'generation.{numeric[0]}={value}'?)"
        raise ConfigError(f"{key}={str(value)[:80]} must be one of: {names}{meant}")
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{key} has the character NUL (U+0000), which file names and text cannot have; remove it")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value} is not a finite number")
    if isinstance(value, float) and abs(value) > LARGEST_FLOAT:
        raise ConfigError(f"{key}={value} is too large for float32; the largest value is {LARGEST_FLOAT:g}")
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ConfigError(f"{key}={shown(value)} does not fit into 64 bits; the largest value is {LARGEST - 1}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if minimum is not None and not value >= minimum:
            raise ConfigError(f"{key}={value} is below its minimum, {minimum}")
        if maximum is not None and not value <= maximum:
            raise ConfigError(f"{key}={value} is above its maximum, {maximum}")


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a key."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


DEFAULTS = {field.name: default_of(field) for field in dataclasses.fields(GenerationConfig)}
"""The defaults of the ``generation`` group."""


def non_default_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not the defaults, without a ``min_len`` of 0: it only forbids less than the default."""
    changed = {key: value for key, value in values.items() if value != DEFAULTS.get(key, value)}
    return {key: value for key, value in changed.items() if (key, value) != ("min_len", 0)}


def check_compatible(cfg: GenerationConfig, given: Collection[str] = ()) -> None:
    """Refuse keys that exclude each other, or that have no effect without another key or under the rules in use.

    Args:
        cfg: the configuration.
        given: see ``incompatible``.

    Raises:
        ConfigError: names the first such key, the reason and what to do.
    """
    for key, reason in incompatible(cfg, given):
        raise ConfigError(f"generation.{key}={value_text(getattr(cfg, key))} {reason}")


def incompatible(cfg: GenerationConfig, given: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Find the keys that ``check_compatible`` refuses.

    Args:
        cfg: the configuration.
        given: the keys that the user gave, also those with their default.

    Yields:
        Pairs of a key and the reason.
    """
    checked = {*non_default_values(vars(cfg)), *({"beam"} & {*given})}  # the only default that asks for a strategy
    for field in dataclasses.fields(GenerationConfig):
        for need in unmet(cfg, field) if field.name in checked else ():
            yield field.name, sentence_of(need)


def unmet(cfg: GenerationConfig, field: dataclasses.Field[Any]) -> list[Requirement]:
    """The requirements of a key that a configuration does not meet."""
    return [need for need in field.metadata.get("needs", ()) if not need.met(cfg)]


def sentence_of(need: Requirement) -> str:
    """The error message of a requirement, with the names of the keys that it speaks of."""
    *names, last = (f"generation.{key}" for key in keys_tagged(need.keys)) if need.keys else [""]
    return need.sentence.replace("{keys}", f"{', '.join(names)} and {last}" if names else last)


def is_text(annotation: Any) -> bool:
    """True if values of a type are taken literally: ``str``, ``str | None``, ``list[str]``."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return any(is_text(part) for part in typing.get_args(annotation))
    return annotation is str or (typing.get_origin(annotation) is list and typing.get_args(annotation) == (str,))


def takes_text(config: Any, key: str) -> bool:
    """True if a key takes any text, as it is typed.

    Args:
        config: the configuration.
        key: the key.

    Raises:
        ConfigError: there is no such key, or it names a whole group.
    """
    owner, field = locate(config, key)
    return is_text(types_of(owner.__class__)[field.name]) and not field.metadata.get("choices")


def parse_value(key: str, value: str, annotation: Any) -> Any:
    """Read a value as a user types it: text as it is, any other by Hydra's grammar and with OmegaConf's conversions.

    Args:
        key: the key, for messages.
        value: what the user typed; a single value for a list.
        annotation: the type of the field.

    Raises:
        ConfigError: a list of text is written without brackets.
        ValueError: the value does not have the type.
    """
    if is_text(annotation):
        return parse_text(key, value, annotation)
    if typing.get_origin(annotation) is list and value and "," not in value and not value.startswith("["):
        value = f"[{value}]"
    from hydra.core.override_parser.overrides_parser import OverridesParser  # slow to import; text does not need it
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        override = OverridesParser.create().parse_override(f"{key}={value}")
        tree = OmegaConf.structured(dataclasses.make_dataclass("Parsed", [("value", annotation)]))
        tree.value = override.value()
        parsed = OmegaConf.to_object(tree).value  # type: ignore[union-attr]
    except (HydraException, OmegaConfBaseException, OverflowError, RecursionError) as error:
        raise ValueError(value) from error
    if not fits(parsed, annotation):  # OmegaConf does not check the items of lists
        raise ValueError(value)
    return parsed


def parse_text(key: str, value: str, annotation: Any) -> str | list[str] | None:
    """Read the value of a string-typed key: ``[a,b]`` for a list, ``null`` for ``None``, anything else literally.

    Args:
        key: the key, for messages.
        value: what the user typed.
        annotation: the type of the field; see ``is_text``.

    Raises:
        ConfigError: a list is written without brackets: ``a,b`` could be two texts, or one with a comma.
    """
    if typing.get_origin(annotation) is list:
        if value.startswith("[") and value.endswith("]"):
            return list(_parse_items(value[1:-1]))
        if value.startswith("["):
            raise ConfigError(
                f"'{key}={value}' cannot be used: the bracket is not closed; write {key}=[A,B] without spaces, or "
                f"{key}={text_list([value])} for text that begins with a bracket"
            )
        if "," in value:
            raise ConfigError(
                f"'{key}={value}' cannot be used: write {key}=[{value}] for several values, or "
                f"{key}={text_list([value])} for one that contains commas"
            )
        return [value] if value else []
    if value == "null" and annotation is not str:
        return None
    return value


def text_list(items: Sequence[str]) -> str:
    """Write strings as the value of a key, ``["a","b"]``; quotes, backslashes and line breaks are escaped."""
    escaped = (item.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for item in items)
    return "[" + ",".join(f'"{item}"' for item in escaped) + "]"


def value_text(value: Any) -> str:
    """Write a value as a user would type it after ``key=``: ``null``, ``true``, ``[1,2]``, ``["a","b"]``, ``{a:1}``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and any(isinstance(item, str) for item in value):
        return text_list(value)
    if isinstance(value, list):
        return f"[{','.join(map(value_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{value_text(item)}" for key, item in value.items()) + "}"
    return str(value)


def _parse_items(text: str) -> Iterator[str]:
    """Split a list at its commas, except inside quotes: ``a b, "c, d ", 's`` gives ``a b``, ``c, d `` and ``'s``."""
    for found in _ITEM.finditer(text):
        quoted = found["double"] if found["double"] is not None else found["single"]
        if quoted is not None:
            yield re.sub(r"\\([nt\"'\\])", lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted)
        elif bare := found["bare"].strip():
            yield bare


def fits(value: Any, annotation: Any) -> bool:
    """True if a value has a field's type; an integer is also a float, and a truth value is no number."""
    if isinstance(annotation, types.UnionType):
        return any(fits(value, part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if typing.get_origin(annotation) is list:
        return isinstance(value, list) and all(fits(item, typing.get_args(annotation)[0]) for item in value)
    if annotation is type(None):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(annotation, type) and isinstance(value, annotation)


def describe(annotation: Any) -> str:
    """The values of a type in words for messages: ``list[int] | None`` is "a list of whole numbers, or null"."""
    parts = typing.get_args(annotation)
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return ", or ".join(describe(part) for part in parts)
    if typing.get_origin(annotation) is list:
        _, plural, example = _WORDS.get(parts[0], ("", "values", "a,b"))
        return f"a list of {plural}, such as [{example}]"
    if typing.get_origin(annotation) is dict:
        return "keys and values, such as {a:1}"
    return _WORDS[annotation][0] if annotation in _WORDS else str(getattr(annotation, "__name__", annotation))


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


def from_dict(schema: type[R], plain: Mapping[str, Any], where: str, prefix: str = "") -> R:
    """Turn plain values back into a configuration.

    Args:
        schema: the dataclass.
        plain: what ``to_dict`` returned; keys that are missing keep their defaults.
        where: the file that the values come from, for messages.
        prefix: what the names of all keys begin with, likewise.

    Returns:
        An instance of ``schema``.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or is out of its range.
    """
    if schema is TrainConfig:
        _record_user_files(plain)
    return schema(**typed_values(schema, plain, where, prefix))


def typed_values(schema: type, plain: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Check plain values, and give each the type of its key.

    Args:
        schema: the dataclass that declares the keys.
        plain: values by the names of its fields; see ``from_dict`` for the others.
        where: see ``from_dict``.
        prefix: see ``from_dict``.

    Returns:
        The values; a component or group is an instance of its class.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or is out of its range.
    """
    hints = types_of(schema)
    fields = {field.name: field for field in dataclasses.fields(schema)}
    values = {}
    for key, value in plain.items():
        if key not in fields:
            if schema in (GenerationConfig, FastConfig) and key in KEYS_OF_ADDONS:
                if value == KEYS_OF_ADDONS[key][1]:
                    continue  # the configuration of a run has all keys
                check_installed(f"{'fast' if schema is FastConfig else 'generation'}.{key}")
            if file := _FILES_OF_KEYS.get(f"{prefix}{key}"):
                raise ConfigError(
                    f"{where}: the key {prefix}{key} was declared in {file} when the run was made; to run that file's "
                    f"code, if you trust it, set common.user_dir={file}, or import it in Python"
                )
            known = {name: other_names(field) for name, field in fields.items()}
            raise ConfigError(
                f"{where}: unknown key {shown(f'{prefix}{key}')}{did_you_mean(str(key), known)}; correct or remove it"
            )
        if holds_component(fields[key]) and key in GROUPS:
            values[key] = _component_from_dict(GROUPS[key], value, where)
        elif dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {prefix}{key} must hold keys and values, not {shown(value)}")
            values[key] = from_dict(typing.cast(type[Any], hints[key]), value, where, f"{prefix}{key}.")
        elif not fits(value, hints[key]):
            raise ConfigError(f"{where}: {prefix}{key}={shown(value)} should be {describe(hints[key])}")
        else:
            values[key] = float(value) if hints[key] is float and abs(value) < LARGEST else value
            try:
                check_value(key, values[key], fields[key].metadata)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
    return values


def _record_user_files(plain: Mapping[str, Any]) -> None:
    """Record which file registered each of the user's components and keys when the run was made, for messages."""
    components = {**DECODING_COMPONENTS, **TRAINING_COMPONENTS}
    registries = {**GROUPS, **{group: registry for group, (registry, _) in components.items()}}
    common = plain.get("common")
    recorded = common.get("user_files") if isinstance(common, Mapping) else None
    for key, file in recorded.items() if isinstance(recorded, Mapping) else ():
        group, _, name = str(key).partition(".")
        if group in registries and isinstance(file, str):
            registries[group].recorded[name] = file
        elif group == "generation" and isinstance(file, str):
            _FILES_OF_KEYS[str(key)] = file


def _component_from_dict(registry: Registry, value: Any, where: str) -> Any:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get(_NAME), str):
        raise ConfigError(f"{where}: {registry.group} has no key {_NAME}, the name of its {registry.kind}")
    try:
        entry = registry.entry(value[_NAME])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return from_dict(
        entry.config, {key: item for key, item in value.items() if key != _NAME}, where, f"{registry.group}."
    )


def split_argument(override: str) -> tuple[str, str]:
    """Split ``key=value``.

    Raises:
        ConfigError: it has another form.
    """
    if override.startswith(("+", "~")):
        raise ConfigError(f"{override!r}: keys can be neither added nor deleted; give a known key as key=value")
    key, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.\-]*", key):
        raise ConfigError(
            f"{override!r} is not of the form key=value (no spaces, except in quotes); --help lists the keys"
        )
    return key, value


def is_pair(text: str) -> bool:
    """True if an argument has the form ``key=value``; sentences such as ``2 + 2 = 4``, addresses and paths have not."""
    return re.match(r"[+~]?[A-Za-z_][\w.\-]*=|=$", text) is not None


def repeated(overrides: Sequence[str]) -> list[str]:
    """Find keys with two values; the last one counts.

    Args:
        overrides: the arguments that the user typed; words without ``=`` are not looked at.

    Returns:
        A sentence for each value that is not used.
    """
    found, given = [], dict[str, str]()
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals and given.get(key, value) != value:
            found.append(f"{key}={given[key]} is not used, because {key}={value} comes later")
        given[key] = value
    return found


def changed(config: Any) -> list[str]:
    """The fields and groups of a configuration whose values are not the defaults."""
    defaults = vars(type(config)())
    return [name for name, value in vars(config).items() if value != defaults[name]]


def text_values(overrides: Sequence[str], key: str, annotation: Any = list[str]) -> list[str]:
    """The strings that a key is set to; if it is set several times, the last override counts.

    Args:
        overrides: ``key=value`` arguments.
        key: a key whose value is a string or a list of strings.
        annotation: the type of its value.

    Raises:
        ConfigError: a list is written without brackets.
    """
    given = [value for name, _, value in (override.partition("=") for override in overrides) if name == key]
    found = parse_text(key, given[-1], annotation) if given else []
    return [found] if isinstance(found, str) else found or []
