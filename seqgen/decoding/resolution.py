"""Resolution of settings: the model's settings apply where the user gives none, and all keys are checked together.

The settings of a run are the values of the ``generation`` group of its ``config.yaml`` that differ from the defaults;
those of a Hugging Face folder come from its ``generation_config.json``. A value that the user gives overrides them,
even if it is the default value.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from seqgen.config import FastConfig, GenerationConfig
from seqgen.config.compose import check_component_keys, parse_components
from seqgen.config.generation import SINGLE_COMPONENTS, keys_tagged
from seqgen.config.options import CONSTRAINS, KEEPS_SCORES, MODEL, STRATEGY, WARPER, Tags
from seqgen.config.settings import (
    ResolvedConfig,
    ResolvedSettings,
    Settings,
    as_fields,
    by_whole_key,
    is_object,
    names_in,
    of_chosen_components,
)
from seqgen.config.values import (
    DEFAULTS,
    check_compatible,
    incompatible,
    non_default_values,
    to_dict,
    typed_values,
    unmet,
    value_text,
)
from seqgen.core.errors import ConfigError, shown
from seqgen.core.member import MemberSpec
from seqgen.decoding.members import input_of
from seqgen.decoding.rules import HUGGINGFACE, rules_named
from seqgen.registry import DECODING_COMPONENTS

TOOLKIT_LENGTH = 20
"""``max_len`` of a Hugging Face folder that sets no limit."""


def settings_of_model(cfg: GenerationConfig) -> dict[str, Any]:
    """The settings in the ``generation`` group of a run that belong to its model: values that are not the defaults."""
    return {key: value for key, value in to_dict(cfg).items() if value != DEFAULTS[key] and key in keys_tagged(MODEL)}


REPLACED: tuple[tuple[Callable[[Mapping[str, Any], Mapping[str, Any]], bool], Tags, tuple[str, ...]], ...] = (
    (lambda given, objects: "search" in objects, STRATEGY, ("sampling",)),
    # not every strategy supports constraints, and warpers forbid tokens of phrases
    (lambda given, objects: any(map(given.get, keys_tagged(CONSTRAINS))), WARPER, ("search", "sampling")),
)
"""The settings of a model that a choice of the user replaces, whatever their values.

Each row has a function of the given values and objects, which returns true if the user makes the choice; and tags of
keys, and further keys.
"""


def resolve(settings: Settings, models: Sequence[Mapping[str, Any]] = ({},)) -> ResolvedSettings:
    """Complete settings by those of the models and by the defaults.

    Args:
        settings: the layers above the model.
        models: the settings of the model of each member of an ensemble, by the names of ``GenerationConfig``'s fields;
            those of the first one are used, except those that a choice of the user replaces: see ``REPLACED``, and
            those that contradict it, such as a warper of sampling if the user asks for beam search.

    Returns:
        The settings, whose ``semantics`` is never empty, with notes for the user.

    Raises:
        ConfigError: a value of a model has the wrong type or range, or two keys contradict each other.
    """
    given, objects = _without_objects(settings.generation)
    if given.get("semantics") == "":
        del given["semantics"]
    chosen = [(tags, keys) for is_chosen, tags, keys in REPLACED if is_chosen(given, objects)]
    replaced = {key for tags, keys in chosen for key in (*keys, *keys_tagged(tags))}
    _check_limits(models[0], given)
    cfg, taken = _complete(models[0], given, replaced)
    check_compatible(cfg, given)
    groups = SINGLE_COMPONENTS if objects else ()
    check_component_keys(cfg, [group for group in groups if DECODING_COMPONENTS[group][1] in objects])
    notes = _notes(cfg, taken, models, {*given, *replaced})
    return ResolvedSettings(settings, cfg, FastConfig(**settings.fast), objects, tuple(notes))


def _without_objects(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the objects among settings; the keys of objects get empty values, which override the model's."""
    plain = {key: names_in(key, value) for key, value in fields.items()}
    objects: dict[str, Any] = {}
    for key, value in fields.items():
        if plain[key] is value:
            continue
        objects[key] = [item for item in value if is_object(key, item)] if isinstance(value, list) else value
        if key == "member_sources" and isinstance(value, list):  # by position, one entry for each model
            objects[key] = [item if isinstance(item, MemberSpec) else None for item in value]
            plain[key] = [input_of(item) if isinstance(item, MemberSpec) else item for item in value]
    return plain, objects


def _check_limits(of_model: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse settings of a model that would need all memory or an endless output, unless the user overrides them."""
    for field in dataclasses.fields(GenerationConfig):
        key, largest = field.name, field.metadata.get("limit_from_files")
        if largest is None or key in given:
            continue
        if isinstance(value := of_model.get(key), int | float) and value > largest:
            raise ConfigError(
                f"the model's own settings have generation.{key}={shown(value)}, which is more than {largest}; "
                f"set generation.{key} yourself"
            )


def _complete(
    of_model: Mapping[str, Any], given: Mapping[str, Any], replaced: Collection[str]
) -> tuple[ResolvedConfig, dict[str, Any]]:
    """All values: the user's, those of a model that do not contradict them, and the defaults.

    Returns:
        The configuration, and the settings of the model that it has.
    """
    taken = {key: value for key, value in of_model.items() if key not in (*given, *replaced, "components")}
    taken = typed_values(GenerationConfig, taken, "generation")
    values = {**taken, **given}
    cfg = ResolvedConfig(**{**values, "semantics": rules_named(values.get("semantics", "")).name})
    draft = vars(cfg)  # nobody else has the configuration yet
    if "min_len" in taken and 0 < cfg.max_len < cfg.min_len:  # then every output has the maximum length
        draft["min_len"] = taken["min_len"] = cfg.max_len
    fields = {field.name: field for field in dataclasses.fields(GenerationConfig)}
    # each key comes after those that its requirements depend on
    deciding = ("beam", "sampling", *keys_tagged(WARPER), *keys_tagged(CONSTRAINS), "prompt_lookup")
    for key in dict.fromkeys([*deciding, *fields]):
        if key in taken and key in non_default_values(draft) and unmet(cfg, fields[key]):
            draft[key] = copy.copy(DEFAULTS[key])
            del taken[key]
    if (search := taken.get("search")) and [*incompatible(cfg, given)]:
        draft["search"] = ""
        if [*incompatible(cfg, given)]:
            draft["search"] = search
        else:  # the user asks for another strategy by a key such as sampling
            del taken["search"]
    kept = as_fields(of_chosen_components(by_whole_key(of_model), by_whole_key(draft))).get("components", {})
    taken["components"] = {key: value for key, value in kept.items() if key not in cfg.components}
    draft["components"] = {**kept, **cfg.components}
    draft["components"] = parse_components(cfg)
    return cfg, taken


def _notes(
    cfg: GenerationConfig, taken: Mapping[str, Any], models: Sequence[Mapping[str, Any]], given: Collection[str]
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
        first = {key: models[0].get(key, DEFAULTS[key]) for key in {*models[0], *other} - {*given}}
        if differing := sorted(key for key, value in first.items() if other.get(key, DEFAULTS[key]) != value):
            keys = ", ".join(differing)
            notes.append(
                f"the settings of model {number} differ from those of model 1 ({keys}); those of model 1 are used"
            )
    return notes


def changes_scores(cfg: GenerationConfig) -> bool:
    """True if the scores of an output may differ from the log-probabilities of the models, or if that is unknown."""
    return cfg.is_stochastic or bool(non_default_values(to_dict(cfg)).keys() - set(keys_tagged(KEEPS_SCORES)))
