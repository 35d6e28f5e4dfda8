"""Build a typed configuration from ``key=value`` arguments.

Hydra composes the dataclasses of ``seqgen.config`` with the chosen components (``model=fconv_tiny``). The code around
it ensures that no value is ignored or misread: every key must exist, keys cannot be added or deleted, and the value of
a string-typed key is used literally, whatever characters it contains.

Sweeps (``-m``): one command that is run with several configurations.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seqgen.config import GenerateConfig, TrainConfig
from seqgen.config.component_keys import UnparsedText, is_component_key, may_come_from_a_model, parse_component_value
from seqgen.config.keys import annotation_of, is_group, locate
from seqgen.config.values import check_ranges, describe, fits, is_text, parse_text, split_argument
from seqgen.errors import ConfigError
from seqgen.registry import GROUPS

R = TypeVar("R")

_REFUSED = (HydraException, OmegaConfBaseException, ValueError, OverflowError)
"""What Hydra and OmegaConf raise for a value that they cannot use."""

_ROOTS: dict[type, str] = {TrainConfig: "train", GenerateConfig: "generate"}


def compose(schema: type[R], overrides: Sequence[str]) -> R:
    """Build a configuration from its defaults and the user's overrides.

    Args:
        schema: the root dataclass.
        overrides: ``key=value`` arguments, such as ``model=fconv_tiny`` or ``dataset.max_tokens=4096``.

    Returns:
        An instance of ``schema`` in which every component group holds an instance of its own configuration class.

    Raises:
        ConfigError: a key or name does not exist, or a value has the wrong type or is out of its range.
    """
    pairs = [split_argument(override) for override in overrides]
    append = "" if schema in _ROOTS else "+"  # other schemas have no component by default that could be replaced
    choices = [f"{append}{key}={value}" for key, value in pairs if is_group(schema, key)]
    of_components = [(key, value) for key, value in pairs if is_component_key(schema, key)]
    values = [(key, value) for key, value in pairs if not is_group(schema, key) and (key, value) not in of_components]
    name = _store(schema, dict(pair for pair in pairs if is_group(schema, pair[0])))
    with initialize_config_module("seqgen.config.conf", version_base="1.3"):
        defaults = _compose_choices(name, choices)
        for key, _ in values:
            if typing.get_origin(annotation_of(defaults, key)) is dict:
                raise ConfigError(f"{key!r} cannot be set as a whole; --help lists the keys")
        literal = [(key, value) for key, value in values if is_text(annotation_of(defaults, key))]
        typed = [(key, value) for key, value in values if not is_text(annotation_of(defaults, key))]
        config = _compose_values(name, choices, typed, defaults)
    for key, value in literal:
        owner, field = locate(config, key)
        setattr(owner, field.name, parse_text(key, value, annotation_of(config, key)))
    for key, value in of_components:
        unknown = may_come_from_a_model(config, key)
        parsed = UnparsedText(value) if unknown else parse_component_value(config.generation, key, value)
        config.generation.components[key] = parsed
    check_ranges(config)
    return typing.cast(R, config)


def chosen_components(schema: type, overrides: Sequence[str]) -> dict[str, str]:
    """The name that is chosen in each component group, by the user or by default: ``{"model": "fconv_tiny", ...}``.

    Args:
        schema: the root dataclass.
        overrides: ``key=value`` arguments.
    """
    pairs = (split_argument(override) for override in overrides)
    return {**_default_components(schema), **{key: value for key, value in pairs if is_group(schema, key)}}


def _default_components(schema: type) -> dict[str, str]:
    if schema not in _ROOTS:
        return {}
    text = resources.files("seqgen.config.conf").joinpath(f"{_ROOTS[schema]}.yaml").read_text(encoding="utf-8")
    groups = [default for default in OmegaConf.create(text).defaults if not isinstance(default, str)]
    return {str(group): str(choice) for default in groups for group, choice in default.items()}


def _store(schema: type, choices: Mapping[str, str]) -> str:
    """Put the root schema and the chosen components where Hydra finds them; return the root's name."""
    store = ConfigStore.instance()
    name = _ROOTS.get(schema, schema.__name__)
    store.store(name=f"{name}_schema" if schema in _ROOTS else name, node=schema)
    for group, choice in {**_default_components(schema), **choices}.items():
        store.store(group=group, name=choice, node=GROUPS[group].config(choice))
    return name


def _listed(value: str, annotation: Any) -> str:
    """Turn one value of a key that takes a list into a list: ``1e-3`` is ``[1e-3]``."""
    single = value and "," not in value and not value.startswith("[")
    return f"[{value}]" if typing.get_origin(annotation) is list and single else value


def _compose_choices(name: str, choices: list[str]) -> Any:
    """Compose the configuration of the chosen components.

    Raises:
        ConfigError: a choice is not a name, such as a number.
    """
    try:
        return _run_hydra(name, choices)
    except ValueError:
        raise ConfigError(f"{' '.join(choices)!r} cannot be used: a component is chosen by its name") from None


def _compose_values(name: str, choices: list[str], values: Sequence[tuple[str, str]], defaults: Any) -> Any:
    """Compose the configuration with values that are not text.

    Raises:
        ConfigError: a value does not fit; the message names its key and says what values the key takes.
    """
    overrides = [f"{key}={_listed(value, annotation_of(defaults, key))}" for key, value in values]
    try:
        config = _run_hydra(name, [*choices, *overrides])
    except _REFUSED:
        for (key, value), override in zip(values, overrides, strict=True):
            try:
                _run_hydra(name, [*choices, override])
            except _REFUSED:
                annotation = annotation_of(defaults, key)
                raise ConfigError(wrong_value(key, value, annotation) + _advice(name, key, value, annotation)) from None
        raise ConfigError(f"{' '.join(overrides)!r} cannot be used together") from None
    for key, value in values:  # OmegaConf does not check the items of lists
        owner, field = locate(config, key)
        found, annotation = getattr(owner, field.name), annotation_of(defaults, key)
        if isinstance(found, list) and not fits(found, annotation):
            raise ConfigError(wrong_value(key, value, annotation))
    return config


def wrong_value(key: str, value: str, annotation: Any) -> str:
    """Say that a value cannot be used, and what values its key takes.

    Args:
        key: the key.
        value: what the user typed.
        annotation: the type of the key's field.
    """
    return f"'{key}={value}' cannot be used: the value should be {describe(annotation)}"


def _advice(name: str, key: str, value: str, annotation: Any) -> str:
    """How to give several values, such as ``1,2``; ``name`` is that of the root schema."""
    if "," not in value or value.startswith(("[", "{")):
        return ""
    if typing.get_origin(annotation) is list:
        return f"; write {key}=[{value}]"
    if name == _ROOTS[TrainConfig]:
        return "; seqgen-train -m trains with each of several values"
    return f"; seqgen-tune tune.{key}={value} decodes with each value" if key.startswith("generation.") else ""


def _run_hydra(name: str, overrides: list[str]) -> Any:
    return OmegaConf.to_object(hydra_compose(name, overrides=overrides))


def expand_sweep(schema: type, overrides: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Expand overrides with several values (``model=a,b common.seed=1,2``) into their product.

    The value of a string-typed key without choices is one value, even if it contains commas.

    Args:
        schema: the root dataclass.
        overrides: ``key=value`` arguments.

    Yields:
        The overrides of each job, and a folder name made of the overrides that differ between jobs.

    Raises:
        ConfigError: a key is unknown, or a value cannot be read.
    """
    pairs = [split_argument(override) for override in overrides]
    first = {key: value.split(",")[0] for key, value in pairs if is_group(schema, key)}
    defaults: Any = compose(schema, [f"{key}={value}" for key, value in first.items()])
    alternatives = []
    for key, value in pairs:
        if is_group(schema, key) or locate(defaults, key)[1].metadata.get("choices"):
            alternatives.append([f"{key}={part}" for part in value.split(",")])
        elif is_text(annotation_of(defaults, key)):
            alternatives.append([f"{key}={value}"])
        else:
            alternatives.append(_sweep_values(key, value, annotation_of(defaults, key)))
    swept = [len(options) > 1 for options in alternatives]
    for job in itertools.product(*alternatives):
        label = ",".join(override for override, varies in zip(job, swept, strict=True) if varies)
        yield list(job), label.replace("/", "_") or "job"


def _sweep_values(key: str, value: str, annotation: Any) -> list[str]:
    """The overrides of one value each that an override with several values stands for."""
    override = f"{key}={value}"
    try:
        parsed = OverridesParser.create().parse_override(override)
        if not parsed.is_sweep_override():
            return [override]
        return [f"{parsed.key_or_group}={item}" for item in parsed.sweep_string_iterator()]
    except HydraException:
        raise ConfigError(wrong_value(key, value, annotation)) from None
