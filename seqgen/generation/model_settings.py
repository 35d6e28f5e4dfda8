"""How a model is decoded where the user does not say: its own settings under those of the user.

A model brings values of its own: a run what the ``generation`` group of its ``config.yaml`` says otherwise than the
defaults, a Hugging Face folder its ``generation_config.json``. Over them comes what the user writes, also where that is
the default value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from seqgen.component_keys import parse_components
from seqgen.config import GenerationConfig
from seqgen.config_dicts import from_dict, to_dict
from seqgen.generation.compatibility import check_compatible, draws, incompatible
from seqgen.generation.rules import with_semantics
from seqgen.registry import DECODING_COMPONENTS

OF_THE_COMMAND = frozenset(
    {"max_tokens", "batch_size", "buffer_size", "dtype", "max_time", "draft", "prefix_trie", "observers", "members"}
    | {"replace_unknown", "ensemble_average", "ensemble_weights"}
)
"""Keys that are never a model's own: how fast, which other files, and what an ensemble does."""

SCORES_STAY = OF_THE_COMMAND - {"prefix_trie"} | {
    *("semantics", "beam", "nbest", "max_len_a", "max_len_b", "max_len", "early_stopping", "end_symbols"),
    *("stop_strings", "unnormalized", "lenpen", "length_penalty", "seed", "mbr", "rerank"),
    *("draft_tokens", "prompt_lookup"),
}
"""Keys that leave each token the log-probability that the models give it."""


NEUTRAL = to_dict(GenerationConfig())
"""The defaults."""


def own_settings(cfg: GenerationConfig) -> dict[str, Any]:
    """What a model takes from the ``generation`` group of its run: values that are not the defaults."""
    return {key: value for key, value in to_dict(cfg).items() if value != NEUTRAL[key] and key not in OF_THE_COMMAND}


def resolve_settings(own: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> tuple[GenerationConfig, list[str]]:
    """Put the user's settings over those of the models.

    Args:
        own: what each member of an ensemble brings; the first one's are taken. One that would be refused beside the
            user's, such as a cut-off of sampling where the user wants a beam search, is left out.
        given: what the user gives, by the names of ``GenerationConfig``'s fields.

    Returns:
        The settings, whose ``semantics`` is never empty, and what the user should know.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type, is out of its range or does not go with another.
    """
    given = {key: value for key, value in given.items() if (key, value) != ("semantics", "")}
    taken = {key: value for key, value in own[0].items() if key not in given and key != "components"}
    wanted = _made({**taken, **given})
    if "min_len" in taken and 0 < wanted.max_len < wanted.min_len:  # then every output has the maximum length
        taken["min_len"] = wanted.max_len
    while useless := _without_effect(_made({**taken, **given})) & set(taken):
        taken = {key: value for key, value in taken.items() if key not in useless}
    cfg = _made({**taken, **given})
    if kept := kept_components(own[0], vars(cfg)):
        taken["components"] = {key: value for key, value in kept.items() if key not in cfg.components}
        cfg = dataclasses.replace(cfg, components={**kept, **cfg.components})
    cfg = dataclasses.replace(cfg, components=parse_components(cfg))
    check_compatible(cfg)
    worth_saying = {key: value for key, value in taken.items() if value != NEUTRAL[key] and not _lifted(cfg, key)}
    worth_saying |= worth_saying.pop("components", {})
    shown = ", ".join(f"{key}={_text(value)}" for key, value in worth_saying.items())
    notes = [f"keys you do not set come from the model: generation.{shown}"] if shown else []
    for number, other in enumerate(own[1:], start=2):
        if differing := _differing(own[0], other) - set(given):
            keys = ", ".join(sorted(differing))
            notes.append(
                f"model {number} by itself would be decoded with other settings ({keys}); those of model 1 count"
            )
    return cfg, notes


def kept_components(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Those keys of components (``search.groups``) whose component is still chosen after other settings are put over.

    Args:
        below: settings by the names of ``GenerationConfig``'s fields.
        above: those that are put over them.
    """
    kept = {}
    for key, value in below.get("components", {}).items():
        group, name = key.split(".")[:2]
        chooser = DECODING_COMPONENTS[group][1]
        before = below.get(chooser, NEUTRAL[chooser])
        now = above.get(chooser, before)
        if now == before or (isinstance(now, list) and name in now):
            kept[key] = value
    return kept


def _made(values: Mapping[str, Any]) -> GenerationConfig:
    return with_semantics(from_dict(GenerationConfig, values, "generation"))


def _without_effect(cfg: GenerationConfig) -> set[str]:
    """The keys that ``check_compatible`` would refuse."""
    return {key for key, _ in incompatible(cfg)}


def _lifted(cfg: GenerationConfig, key: str) -> bool:
    """Whether a value only takes away a limit that is seqgen's own."""
    return (key == "max_len_b" and 0 < cfg.max_len <= cfg.max_len_b) or (key == "min_len" and cfg.min_len == 0)


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """The keys of which two models have different values."""
    return {key for key in {*one, *other} if one.get(key, NEUTRAL[key]) != other.get(key, NEUTRAL[key])}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def changes_scores(cfg: GenerationConfig) -> bool:
    """Whether the scores of an output may be others than the models themselves give it; true where in doubt."""
    plain = {**to_dict(cfg), "min_len": max(cfg.min_len, NEUTRAL["min_len"])}  # one that forbids less changes nothing
    return draws(cfg) or any(value != NEUTRAL[key] for key, value in plain.items() if key not in SCORES_STAY)
