"""Build a typed configuration from ``key=value`` arguments.

Hydra composes the dataclasses of ``seqgen.config`` with the chosen components (``model=fconv_tiny``). The code around
it ensures that no value is ignored or misread: every key must exist, keys cannot be added or deleted, and the value of
a string-typed key is used literally, whatever characters it contains.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seqgen.arguments import split_argument
from seqgen.component_keys import UnparsedText, is_component_key, may_come_from_a_model, parse_component_value
from seqgen.config import GenerateConfig, TrainConfig
from seqgen.config_keys import annotation_of, is_group, locate
from seqgen.config_values import check_ranges, is_text, parse_text
from seqgen.errors import ConfigError
from seqgen.registry import GROUPS
from seqgen.renamed import former_names

globals()["__getattr__"] = former_names(__name__)  # a function would hide misspelt names from type checkers

R = TypeVar("R")

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
    with initialize_config_module("seqgen.conf", version_base="1.3"):
        defaults = _run_hydra(name, choices)
        for key, _ in values:
            if typing.get_origin(annotation_of(defaults, key)) is dict:
                raise ConfigError(f"{key!r} cannot be set as a whole; --help lists the keys")
        literal = [(key, value) for key, value in values if is_text(annotation_of(defaults, key))]
        typed = [f"{key}={value}" for key, value in values if (key, value) not in literal]
        config = _run_hydra(name, [*choices, *typed])
    for key, value in literal:
        owner, field = locate(config, key)
        setattr(owner, field.name, parse_text(value, annotation_of(config, key)))
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
    text = resources.files("seqgen.conf").joinpath(f"{_ROOTS[schema]}.yaml").read_text(encoding="utf-8")
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


def _run_hydra(name: str, overrides: list[str]) -> Any:
    try:
        return OmegaConf.to_object(hydra_compose(name, overrides=overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, overrides)) from None


def explain(error: Exception, overrides: list[str]) -> str:
    """Say in one sentence which override Hydra or OmegaConf refused, and why.

    Args:
        error: what Hydra or OmegaConf raised.
        overrides: ``key=value`` arguments.
    """
    cause = error.__cause__ or error
    key = getattr(cause, "full_key", None)
    culprit = getattr(error, "override", None) or next((o for o in overrides if key and o.startswith(key)), None)
    reason = str(cause).strip().splitlines()[0]
    if culprit is None:
        culprit = next((o for o in overrides if o in str(error)), " ".join(overrides))
    return f"{culprit!r} cannot be used: {reason[:1].lower()}{reason[1:]}"
