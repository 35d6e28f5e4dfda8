"""The settings that a user gives to a translator and its calls, some of which may be objects or have dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from seqgen.config import DebugConfig, GenerationConfig
from seqgen.config.generation import ENSEMBLE, keys_with
from seqgen.generation.ensemble.combinations import Combination
from seqgen.generation.ensemble.member import MemberSpec, input_of
from seqgen.generation.model_settings import kept_components
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


@dataclass(frozen=True)
class GivenSettings:
    """The settings that a user gives.

    Attributes:
        objects: decoding components, by the arguments of the generator.
        plain: keys of ``GenerationConfig``; the components' own keys are in ``components``. A key whose value is an
            object has an empty value, which overrides the name that the model or the constructor sets.
        debug: keys of ``DebugConfig``.
    """

    objects: dict[str, Any]
    plain: dict[str, Any]
    debug: dict[str, Any]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Separate settings.

        Args:
            settings: keys of ``GenerationConfig``, and with their prefixes the keys of components and of
                ``DebugConfig`` (``search.groups``, ``debug.use_cache``). A list may contain names and objects.
        """
        objects: dict[str, Any] = {}
        named = dict(settings)
        for key, (kind, argument) in OBJECTS.items():
            value: Any = named.get(key)
            if isinstance(value, kind):
                objects[argument] = value
                named[key] = ""
            elif not isinstance(value, list | tuple) or not any(isinstance(item, kind) for item in value):
                continue
            elif key == "members":  # by position, one entry for each model
                objects[argument] = [item if isinstance(item, MemberSpec) else None for item in value]
                named[key] = [input_of(item) if isinstance(item, MemberSpec) else item for item in value]
            else:
                objects[argument] = [item for item in value if isinstance(item, kind)]
                named[key] = [item for item in value if not isinstance(item, kind)]
        plain = {key: value for key, value in named.items() if "." not in key}
        debug = {key.removeprefix("debug."): value for key, value in named.items() if key.startswith("debug.")}
        own = {key: value for key, value in named.items() if "." in key and not key.startswith("debug.")}
        if own:
            plain["components"] = {**plain.get("components", {}), **own}
        return cls(objects, plain, debug)

    def overridden(self, settings: Mapping[str, Any]) -> GivenSettings:
        """These settings, overridden by those of a call."""
        call = GivenSettings.of(settings)
        kept = {name: value for name, value in self.objects.items() if KEYS_BY_ARGUMENT[name] not in settings}
        plain = {**self.plain, **call.plain}
        if components := {**kept_components(self.plain, call.plain), **call.plain.get("components", {})}:
            plain["components"] = components
        return GivenSettings({**kept, **call.objects}, plain, {**self.debug, **call.debug})


@dataclass(frozen=True)
class CallSettings:
    """The resolved settings of a call.

    Attributes:
        cfg: the configuration.
        objects: decoding components that replace or extend those of the configuration, by the arguments of the
            generator.
        debug: switches of optimizations.
        given: the keys that the user gave to the constructor or the call, and their values.
        notes: notes for the user.
    """

    cfg: GenerationConfig
    objects: dict[str, Any]
    debug: DebugConfig
    given: dict[str, Any]
    notes: list[str]


def ensemble_settings(cfg: GenerationConfig, objects: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with which another translator makes the same ensemble of the same models.

    Args:
        cfg: the settings of a call.
        objects: its objects, by the arguments of the generator.
    """
    prefixes = ("combination.", "inner_combination.", "source.")
    of_components = {key: value for key, value in cfg.components.items() if key.startswith(prefixes)}
    settings = {key: getattr(cfg, key) for key in keys_with(ENSEMBLE)} | of_components
    if "combination" in objects:
        settings["combination"] = objects["combination"]
    if specs := objects.get("members"):
        settings["members"] = [spec or source for spec, source in zip(specs, cfg.members, strict=True)]
    return settings


def identities(objects: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Each argument with the ``id`` of its object, or of each object of a list: equal if the objects are the same."""
    return [(name, tuple(map(id, value if isinstance(value, list) else [value]))) for name, value in objects.items()]
