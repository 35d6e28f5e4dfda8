"""The settings that a cross-vocabulary ensemble supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqgen.config import GenerationConfig
from seqgen.config.compose import component_config
from seqgen.config.generation import keys_tagged
from seqgen.config.options import ACROSS_VOCABULARIES
from seqgen.config.values import DEFAULTS, non_default_values
from seqgen.core.errors import ConfigError
from seqgen.registry import COMBINATIONS

COMPONENT_KEYS = ("combination.weights", "utility.", "reranker.")
"""The beginnings of the components' keys that can be used."""

OBJECTS = ("mbr", "rerank", "member_sources")
"""The decoding components that can be given as objects."""

NOTE = (
    "the members have different target vocabularies, so they are decoded as a cross-vocabulary ensemble: each "
    "member generates its own tokens, and the score is the weighted mean of the members' scores"
)


def check_supported(cfg: GenerationConfig, objects: Mapping[str, Any]) -> None:
    """Refuse settings that need one vocabulary, or another search.

    Args:
        cfg: the settings.
        objects: the decoding components that are given as objects, by key.

    Raises:
        ConfigError: names the first such setting.
    """
    given = non_default_values(vars(cfg))
    allowed = {"search": "beam", "combination": "log"}
    refused = {
        f"generation.{key}": value for key, value in given.items() if key not in keys_tagged(ACROSS_VOCABULARIES)
    }
    refused = {key: value for key, value in refused.items() if value != allowed.get(key.removeprefix("generation."))}
    refused |= {key: value for key, value in cfg.components.items() if not key.startswith(COMPONENT_KEYS)}
    refused |= {key: type(value).__name__ for key, value in objects.items() if key not in OBJECTS}
    if cfg.semantics != "fairseq":
        refused["generation.semantics"] = cfg.semantics
    for key, value in refused.items():
        raise _impossible(f"{key}={str(value).lower() if isinstance(value, bool) else value}")
    if 0 in component_config(COMBINATIONS, "log", cfg).weights:
        raise ConfigError(
            "a member with the weight 0 would still restrict the text on which members with different target "
            "vocabularies agree; remove its model from path"
        )


def check_details(**wanted: bool) -> None:
    """Refuse what the generator does not compute.

    Args:
        wanted: what the user wants, by name.

    Raises:
        ConfigError: names the first.
    """
    for name, value in wanted.items():
        if value:
            raise _impossible(name)


def _impossible(what: str) -> ConfigError:
    return ConfigError(
        f"{what} is not possible with members that have different target vocabularies; remove it, or give models "
        "with the same target vocabulary"
    )


def supported_settings(of_models: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Leave out the settings of models that ``check_supported`` would refuse.

    Args:
        of_models: the settings of each model.

    Returns:
        The other settings of each model, and the names of those of the first model that are left out.
    """
    wanted = set(keys_tagged(ACROSS_VOCABULARIES)) - {"semantics", "components"}
    kept = [{key: value for key, value in settings.items() if key in wanted} for settings in of_models]
    ignored = [
        key
        for key, value in of_models[0].items()
        if key not in {*wanted, "forced_first"} and value not in (DEFAULTS[key], "fairseq", "beam")
    ]
    return kept, sorted(ignored)
