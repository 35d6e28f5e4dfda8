"""A model's own decoding settings, which apply to the keys that the user does not set.

A run's own settings are the values of the ``generation`` group of its ``config.yaml`` that differ from the defaults;
those of a Hugging Face folder come from its ``generation_config.json``. A value that the user gives overrides them,
even if it is the default value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from seqgen.config import GenerationConfig
from seqgen.config.compose import parse_components
from seqgen.config.generation import KEEPS_SCORES, MODEL, keys_with
from seqgen.config.values import DEFAULTS, check_compatible, from_dict, incompatible, restricting, to_dict, value_text
from seqgen.errors import ConfigError, shown
from seqgen.generation.rules import HUGGINGFACE, with_semantics
from seqgen.registry import DECODING_COMPONENTS

TOOLKIT_LENGTH = 20
"""``max_len`` of a Hugging Face folder that sets no limit."""


def own_settings(cfg: GenerationConfig) -> dict[str, Any]:
    """A model's own settings in the ``generation`` group of its run: values that are not the defaults."""
    return {key: value for key, value in to_dict(cfg).items() if value != DEFAULTS[key] and key in keys_with(MODEL)}


def resolve_settings(own: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> tuple[GenerationConfig, list[str]]:
    """Override the models' own settings by those of the user.

    Args:
        own: the own settings of each member of an ensemble; those of the first one are used. An own setting that
            contradicts the user's settings, such as a warper of sampling if the user asks for beam search, is ignored.
        given: the user's settings, by the names of ``GenerationConfig``'s fields.

    Returns:
        The settings, whose ``semantics`` is never empty, and notes for the user.

    Raises:
        ConfigError: a key is unknown, a value has the wrong type or range, or two keys contradict each other.
    """
    given = {key: value for key, value in given.items() if (key, value) != ("semantics", "")}
    for field in dataclasses.fields(GenerationConfig):
        key, largest = field.name, field.metadata["limit_from_files"]
        if largest is not None and key not in given and own[0].get(key, 0) > largest:
            raise ConfigError(
                f"the model's own settings have generation.{key}={shown(own[0][key])}, which is more than {largest}; "
                f"give generation.{key} yourself"
            )
    taken = {key: value for key, value in own[0].items() if key not in given and key != "components"}
    wanted = _made({**taken, **given})
    if "min_len" in taken and 0 < wanted.max_len < wanted.min_len:  # then every output has the maximum length
        taken["min_len"] = wanted.max_len
    while refused := {key for key, _ in incompatible(_made({**taken, **given}))} & set(taken):
        taken = {key: value for key, value in taken.items() if key not in refused}
    without = {key: value for key, value in taken.items() if key != "search"}
    if any(incompatible(_made({**taken, **given}))) and not any(incompatible(_made({**without, **given}))):
        taken = without  # the user asks for another strategy by a key such as sampling
    cfg = _made({**taken, **given})
    if kept := kept_components(own[0], vars(cfg)):
        taken["components"] = {key: value for key, value in kept.items() if key not in cfg.components}
        cfg = dataclasses.replace(cfg, components={**kept, **cfg.components})
    cfg = dataclasses.replace(cfg, components=parse_components(cfg))
    check_compatible(cfg)
    notable = restricting(taken)
    if 0 < cfg.max_len <= cfg.max_len_b:  # the value only removes a default limit
        notable.pop("max_len_b", None)
    notable |= notable.pop("components", {})
    listed = ", ".join(f"{key}={value_text(value)}" for key, value in notable.items())
    notes = [f"keys you do not set come from the model: generation.{listed}"] if listed else []
    if notable.get("max_len") == TOOLKIT_LENGTH and own[0].get("semantics") == HUGGINGFACE.name:
        notes[0] += f"; max_len={TOOLKIT_LENGTH} is the default of transformers for models that set no limit"
    for number, other in enumerate(own[1:], start=2):
        if differing := _differing(own[0], other) - set(given):
            keys = ", ".join(sorted(differing))
            notes.append(
                f"the own settings of model {number} differ from those of model 1 ({keys}); those of model 1 are used"
            )
    return cfg, notes


def kept_components(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Select the component keys (``search.groups``) whose component is still chosen after settings are overridden.

    Args:
        below: settings by the names of ``GenerationConfig``'s fields.
        above: the settings that override them.

    Returns:
        The selected keys of ``below["components"]`` with their values.
    """
    kept = {}
    for key, value in below.get("components", {}).items():
        group, name = key.split(".")[:2]
        chooser = DECODING_COMPONENTS[group][1]
        before = below.get(chooser, DEFAULTS[chooser])
        now = above.get(chooser, before)
        if now == before or (isinstance(now, list) and name in now):
            kept[key] = value
    return kept


def _made(values: Mapping[str, Any]) -> GenerationConfig:
    return with_semantics(from_dict(GenerationConfig, values, "generation"))


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """The keys whose values differ between the own settings of two models."""
    return {key for key in {*one, *other} if one.get(key, DEFAULTS[key]) != other.get(key, DEFAULTS[key])}


def changes_scores(cfg: GenerationConfig) -> bool:
    """Whether the scores of an output may differ from the log-probabilities of the models; true if unknown."""
    return cfg.is_stochastic or bool(restricting(to_dict(cfg)).keys() - set(keys_with(KEEPS_SCORES)))
