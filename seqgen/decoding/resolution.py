"""Resolution of settings: the model's settings apply where the user gives none, and all keys are checked together.

The settings of a run are the values of the ``generation`` group of its ``config.yaml`` that differ from the defaults;
those of a Hugging Face folder come from its ``generation_config.json``. A value that the user gives overrides them,
even if it is the default value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from seqgen.config import FastConfig, GenerationConfig
from seqgen.config.compose import parse_components
from seqgen.config.generation import keys_tagged
from seqgen.config.options import KEEPS_SCORES, MODEL, WARPER
from seqgen.config.settings import ResolvedSettings, Settings, as_fields
from seqgen.config.values import (
    DEFAULTS,
    check_compatible,
    from_dict,
    incompatible,
    non_default_values,
    to_dict,
    value_text,
)
from seqgen.core.component import Component
from seqgen.core.errors import ConfigError, shown
from seqgen.core.member import MemberSpec
from seqgen.decoding.member_sources import input_of
from seqgen.decoding.rules import HUGGINGFACE, with_semantics

TOOLKIT_LENGTH = 20
"""``max_len`` of a Hugging Face folder that sets no limit."""


def settings_of_model(cfg: GenerationConfig) -> dict[str, Any]:
    """The settings in the ``generation`` group of a run that belong to its model: values that are not the defaults."""
    return {key: value for key, value in to_dict(cfg).items() if value != DEFAULTS[key] and key in keys_tagged(MODEL)}


def check_types(settings: Settings) -> None:
    """Check the spelling, the types and the ranges of settings, before models are loaded.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or range.
    """
    from_dict(GenerationConfig, _without_objects(settings.generation)[0], "generation")
    from_dict(FastConfig, settings.fast, "fast")


def resolve(settings: Settings, models: Sequence[Mapping[str, Any]] = ({},)) -> ResolvedSettings:
    """Complete settings by those of the models and by the defaults.

    Args:
        settings: the layers above the model.
        models: the settings of the model of each member of an ensemble, by the names of ``GenerationConfig``'s fields;
            those of the first one are used. Its settings that contradict the others, such as a warper of sampling if
            the user asks for beam search, are ignored.

    Returns:
        The settings, whose ``semantics`` is never empty, with notes for the user.

    Raises:
        ConfigError: a key is unknown, a value has the wrong type or range, or two keys contradict each other.
    """
    given, objects = _without_objects(settings.generation)
    if given.get("semantics") == "":
        del given["semantics"]
    of_model = models[0]
    _check_limits(of_model, given)
    taken = _not_contradicting({key: value for key, value in of_model.items() if key != "components"}, given)
    cfg = _config({**taken, **given})
    kept = as_fields(Settings().over("model", of_model).with_layer("all", vars(cfg)).values).get("components", {})
    if kept:
        taken["components"] = {key: value for key, value in kept.items() if key not in cfg.components}
        cfg = dataclasses.replace(cfg, components=kept)
    cfg = dataclasses.replace(cfg, components=parse_components(cfg))
    check_compatible(cfg, given)
    notes = _notes(cfg, taken, models, given)
    return ResolvedSettings(settings, cfg, from_dict(FastConfig, settings.fast, "fast"), objects, tuple(notes))


def _without_objects(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the objects among settings; the keys of objects get empty values, which override the model's."""
    plain, objects = dict(fields), dict[str, Any]()
    for key, value in fields.items():
        if key == "member_sources" and isinstance(value, list) and any(isinstance(item, MemberSpec) for item in value):
            # by position, one entry for each model
            objects[key] = [item if isinstance(item, MemberSpec) else None for item in value]
            plain[key] = [input_of(item) if isinstance(item, MemberSpec) else item for item in value]
        elif isinstance(value, list) and (found := [item for item in value if _is_object(key, item)]):
            objects[key] = found
            plain[key] = [item for item in value if not _is_object(key, item)]
        elif _is_object(key, value):
            objects[key], plain[key] = value, ""
    return plain, objects


def _is_object(key: str, value: Any) -> bool:
    return isinstance(value, Component) and value.setting == key


def _check_limits(of_model: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse settings of a model that would need all memory or an endless output, unless the user overrides them."""
    for field in dataclasses.fields(GenerationConfig):
        key, largest = field.name, field.metadata.get("limit_from_files")
        if largest is not None and key not in given and of_model.get(key, 0) > largest:
            raise ConfigError(
                f"the model's own settings have generation.{key}={shown(of_model[key])}, which is more than {largest}; "
                f"set generation.{key} yourself"
            )


def _not_contradicting(of_model: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model that the user does not set, and that do not contradict those of the user."""

    def conflicts(values: Mapping[str, Any]) -> set[str]:
        return {key for key, _ in incompatible(_config({**values, **given}), given)}

    taken = {key: value for key, value in of_model.items() if key not in given}
    wanted = _config({**taken, **given})
    if _config(given).is_constrained:  # not every strategy takes constraints, and warpers forbid tokens of phrases
        taken = {key: value for key, value in taken.items() if key not in ("search", "sampling", *keys_tagged(WARPER))}
    if "min_len" in taken and 0 < wanted.max_len < wanted.min_len:  # then every output has the maximum length
        taken["min_len"] = wanted.max_len
    while refused := conflicts(taken) & set(taken):
        taken = {key: value for key, value in taken.items() if key not in refused}
    without = {key: value for key, value in taken.items() if key != "search"}
    if conflicts(taken) and not conflicts(without):
        return without  # the user asks for another strategy by a key such as sampling
    return taken


def _notes(
    cfg: GenerationConfig, taken: Mapping[str, Any], models: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> list[str]:
    """Notes on the settings that come from the model, and on members whose models have other ones."""
    notable = non_default_values(taken)
    if 0 < cfg.max_len <= cfg.max_len_b:  # the value only removes a default limit
        notable.pop("max_len_b", None)
    notable |= notable.pop("components", {})
    listed = ", ".join(f"{key}={value_text(value)}" for key, value in notable.items())
    notes = (
        [f"the model decodes with settings of its own, which your keys override: generation.{listed}"] if listed else []
    )
    if notable.get("max_len") == TOOLKIT_LENGTH and models[0].get("semantics") == HUGGINGFACE.name:
        notes[0] += f"; max_len={TOOLKIT_LENGTH} is the default of transformers for models that set no limit"
    for number, other in enumerate(models[1:], start=2):
        first = {key: models[0].get(key, DEFAULTS[key]) for key in {*models[0], *other} - set(given)}
        if differing := sorted(key for key, value in first.items() if other.get(key, DEFAULTS[key]) != value):
            keys = ", ".join(differing)
            notes.append(
                f"the settings of model {number} differ from those of model 1 ({keys}); those of model 1 are used"
            )
    return notes


def _config(values: Mapping[str, Any]) -> GenerationConfig:
    return with_semantics(from_dict(GenerationConfig, values, "generation"))


def changes_scores(cfg: GenerationConfig) -> bool:
    """True if the scores of an output may differ from the log-probabilities of the models, or if that is unknown."""
    return cfg.is_stochastic or bool(non_default_values(to_dict(cfg)).keys() - set(keys_tagged(KEEPS_SCORES)))
