"""Build a typed configuration from ``key=value`` arguments.

The dataclasses of ``seqgen.config`` hold the configurations of the chosen components (``model=fconv_tiny``). Values are
read by Hydra's grammar and converted by OmegaConf, except that of a string-typed key, which is used literally, whatever
characters it contains. Every key must exist; keys cannot be added or deleted.

Sweeps (``-m``): one command that is run with several configurations.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

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

DEFAULT_COMPONENTS: dict[type, dict[str, str]] = {
    TrainConfig: {
        "task": "number_names",
        "model": "fconv_tiny",
        "criterion": "label_smoothed_cross_entropy",
        "optimizer": "adam",
        "lr_scheduler": "inverse_sqrt",
    },
    GenerateConfig: {},
}
"""The components that are chosen by default, for each root configuration that has components."""


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
    of_components = [(key, value) for key, value in pairs if is_component_key(schema, key)]
    values = [(key, value) for key, value in pairs if not is_group(schema, key) and (key, value) not in of_components]
    defaults: Any = schema()
    for group, name in chosen_components(schema, overrides).items():
        setattr(defaults, group, GROUPS[group].config(name))
    for key, _ in values:
        if typing.get_origin(annotation_of(defaults, key)) is dict:
            raise ConfigError(f"{key!r} cannot be set as a whole; --help lists the keys")
    literal = [(key, value) for key, value in values if is_text(annotation_of(defaults, key))]
    typed = [(key, value) for key, value in values if not is_text(annotation_of(defaults, key))]
    config = _with_values(defaults, typed)
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
    return {**DEFAULT_COMPONENTS.get(schema, {}), **{key: value for key, value in pairs if is_group(schema, key)}}


def _listed(value: str, annotation: Any) -> str:
    """Turn one value of a key that takes a list into a list: ``1e-3`` is ``[1e-3]``."""
    single = value and "," not in value and not value.startswith("[")
    return f"[{value}]" if typing.get_origin(annotation) is list and single else value


def _with_values(defaults: Any, values: Sequence[tuple[str, str]]) -> Any:
    """The configuration with values that are not text, in Hydra's grammar and with OmegaConf's conversions.

    Raises:
        ConfigError: a value does not fit; the message names its key and says what values the key takes.
    """
    tree, parser = OmegaConf.structured(defaults), OverridesParser.create()
    for key, value in values:
        annotation = annotation_of(defaults, key)
        try:
            override = parser.parse_override(f"{key}={_listed(value, annotation)}")
            if override.is_sweep_override():
                raise ValueError(value)
            OmegaConf.update(tree, key, override.value())
        except _REFUSED:
            raise ConfigError(wrong_value(key, value, annotation) + _advice(defaults, key, value, annotation)) from None
    config = OmegaConf.to_object(tree)
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


def _advice(config: Any, key: str, value: str, annotation: Any) -> str:
    """How to give several values, such as ``1,2``."""
    if "," not in value or value.startswith(("[", "{")):
        return ""
    if typing.get_origin(annotation) is list:
        return f"; write {key}=[{value}]"
    if isinstance(config, TrainConfig):
        return "; seqgen-train -m trains with each of several values"
    return f"; seqgen-tune tune.{key}={value} decodes with each value" if key.startswith("generation.") else ""


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
