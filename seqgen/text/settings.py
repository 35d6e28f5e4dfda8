"""Settings of a translator whose values may be objects, such as ``search=MySearch()``, and dotted component keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqgen.config import GenerationConfig
from seqgen.generation.ensemble.combinations import Combination
from seqgen.generation.ensemble.member import MemberSpec, input_of
from seqgen.generation.observers import Observer
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.search.base import Search
from seqgen.generation.stopping import StoppingRule
from seqgen.text.reranking import Reranker, Utility

OBJECTS: dict[str, tuple[type, str]] = {
    "members": (MemberSpec, "members"),
    "mbr": (Utility, "utility"),
    "rerank": (Reranker, "reranker"),
    "search": (Search, "search_strategy"),
    "combination": (Combination, "combination"),
    "processors": (LogitsProcessor, "processors"),
    "stopping_rules": (StoppingRule, "stopping"),
    "observers": (Observer, "observers"),
}
"""For each key that may be an object rather than a name: its class, and the argument of the generator that gets it."""

KEYS_BY_ARGUMENT = {argument: key for key, (_, argument) in OBJECTS.items()}
"""The key for each argument of the generator."""


OF_ENSEMBLE = ("combination", "inner_combination", "ensemble_average", "ensemble_weights", "members", "guidance_scale")
"""The settings that make models an ensemble, besides the keys of the combination and the members' sources."""


def ensemble_settings(cfg: GenerationConfig, objects: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with which another translator makes the same ensemble of the same models.

    Args:
        cfg: the settings of a call.
        objects: its objects, by the arguments of the generator.
    """
    prefixes = ("combination.", "inner_combination.", "source.")
    of_components = {key: value for key, value in cfg.components.items() if key.startswith(prefixes)}
    settings = {key: getattr(cfg, key) for key in OF_ENSEMBLE} | of_components
    if "combination" in objects:
        settings["combination"] = objects["combination"]
    if specs := objects.get("members"):
        settings["members"] = [spec or source for spec, source in zip(specs, cfg.members, strict=True)]
    return settings


def separate_objects(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate objects from names and numbers.

    Args:
        settings: keys of ``GenerationConfig`` and their values. A list may contain names and objects.

    Returns:
        The objects, by the arguments of the generator, and the settings without them. A key whose value is an object
        stays with an empty value, which overrides the name that the model or the constructor sets.
    """
    objects: dict[str, Any] = {}
    plain = dict(settings)
    for key, (kind, argument) in OBJECTS.items():
        value: Any = plain.get(key)
        if isinstance(value, kind):
            objects[argument] = value
            plain[key] = ""
        elif not isinstance(value, list | tuple) or not any(isinstance(item, kind) for item in value):
            continue
        elif key == "members":  # by position, one entry for each model
            objects[argument] = [item if isinstance(item, MemberSpec) else None for item in value]
            plain[key] = [input_of(item) if isinstance(item, MemberSpec) else item for item in value]
        else:
            objects[argument] = [item for item in value if isinstance(item, kind)]
            plain[key] = [item for item in value if not isinstance(item, kind)]
    return objects, plain


def separate_dotted_keys(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Move component keys, such as ``search.groups``, to ``components``, and separate the keys of ``DebugConfig``.

    Args:
        settings: keys of ``GenerationConfig``, components and ``DebugConfig``, without objects.

    Returns:
        The keys of ``GenerationConfig``, and those of ``DebugConfig`` without the prefix ``debug.``.
    """
    plain = {key: value for key, value in settings.items() if "." not in key}
    debug = {key.removeprefix("debug."): value for key, value in settings.items() if key.startswith("debug.")}
    own = {key: value for key, value in settings.items() if "." in key and not key.startswith("debug.")}
    if own:
        plain["components"] = {**plain.get("components", {}), **own}
    return plain, debug


def identities(objects: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Each argument with the ``id`` of its object, or of each object of a list: equal if the objects are the same."""
    return [(name, tuple(map(id, value if isinstance(value, list) else [value]))) for name, value in objects.items()]
