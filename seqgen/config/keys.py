"""The keys of a configuration, such as ``dataset.max_tokens``, and the field that each key names.

Hints for a key that does not exist: the existing key that the user probably means, also by other toolkits' names.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seqgen.config.generation import check_installed
from seqgen.config.training import TrainConfig
from seqgen.core.errors import ConfigError
from seqgen.registry import GROUPS


def known_keys(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """List every key of a configuration.

    Args:
        config: the configuration.
        prefix: prefix of its keys.

    Yields:
        The key, its field and its value.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from known_keys(value, f"{prefix}{field.name}.")
        elif not holds_component(field) or field.name not in GROUPS:
            yield prefix + field.name, field, value


def holds_component(field: dataclasses.Field[Any]) -> bool:
    """True if a field holds the configuration of a component, whose class depends on the chosen name."""
    return field.type in (Any, "Any")


def is_group(schema: type, key: str) -> bool:
    """True if a key chooses a component of a configuration: ``model``, but not ``model.dropout``."""
    return key in GROUPS and key in {field.name for field in dataclasses.fields(schema) if holds_component(field)}


def locate(config: Any, key: str) -> tuple[Any, dataclasses.Field[Any]]:
    """Find the dataclass instance and the field that a dotted key names.

    Args:
        config: the configuration; or its class, to check a key that is none of a chosen component.
        key: the key.

    Returns:
        The instance, or the class, and its field.

    Raises:
        ConfigError: there is no such key, or it names a whole group.
    """
    *path, last = key.split(".")
    owner = config
    for part in path:
        owner = _group(owner, part)
    fields = {field.name: field for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else {}
    if last not in fields:
        check_installed(key)
        raise ConfigError(f"unknown key {key!r}{_hint(config, key)}; --help lists the keys")
    if _group(owner, last) is not None:
        raise ConfigError(f"{key!r} is a group; set one of its keys: {key}.KEY=VALUE")
    return owner, fields[last]


def _group(owner: Any, name: str) -> Any:
    """A group of a configuration or of its class; ``None`` for a key, or if there is none of this name."""
    found = types_of(owner).get(name) if isinstance(owner, type) else getattr(owner, name, None)
    return found if dataclasses.is_dataclass(found) else None


def _hint(config: Any, key: str) -> str:
    config = config() if isinstance(config, type) else config
    groups = [field.name for field in dataclasses.fields(config) if is_group(type(config), field.name)]
    known = dict.fromkeys(groups, ()) | {
        name: other_names(field) for name, field, _ in known_keys(config) if field.name != "components"
    }
    group, _, last = key.partition(".")
    if group in groups and not _keys_of_other_name(last, known):
        others = [
            e.name for e in GROUPS[group].entries() if last in {field.name for field in dataclasses.fields(e.config)}
        ]
        if others:
            chosen = GROUPS[group].of(getattr(config, group)).name
            example = " (add task=translation, task.source_lang, task.target_lang)" if key == "task.train" else ""
            return f", because {group}={chosen}; it is a key of {group}={' or '.join(others)}{example}"
    if found := did_you_mean(key, known):
        return found
    of_training = key.partition(".")[0] in GROUPS or key in {name for name, *_ in known_keys(TrainConfig())}
    return ", which is a key of seqgen-train only; a trained model keeps its value" if of_training else ""


def other_names(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    """The names in other toolkits that a key is declared with."""
    return tuple(field.metadata.get("other_names", ()))


def annotation_of(config: Any, key: str) -> Any:
    """The type of the field that a dotted key names; see ``locate``."""
    owner, field = locate(config, key)
    return types_of(owner.__class__)[field.name]


@functools.cache
def types_of(schema: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass."""
    return typing.get_type_hints(schema)


OTHER_NAMES: dict[str, str] = {
    # fairseq's flags
    "a": "model",
    "arch": "model",
    "cpu": "common.device=cpu",
    "diverse_beam_groups": "generation.search=diverse_beam",
    "diverse_beam_strength": "generation.search=diverse_beam",
    "diversity_rate": "generation.search=diverse_siblings",
    "no_progress_bar": "common.log_format=lines",
    "no_save": "checkpoint.save_interval=0",
    "no_validate": "dataset.validate_interval=0",
    "eval_bleu": "dataset.validate_decode=-1",
    "post_process": "remove_bpe=subword_nmt",
    "r": "reference",
    "s": "task.source_lang | source",
    "scoring": "reference",
    "unnormalized": "generation.normalize_scores=false",
    "t": "task.target_lang",
    "tensorboard_logdir": "common.tensorboard=true",
    # as in seqgen-generate
    "format": "json=-",
    "bf16": "generation.dtype=bfloat16",
    "fp16": "generation.dtype=float16",
    # Hugging Face's arguments
    "model_name_or_path": "path | checkpoint.finetune_from",
    "num_beam_groups": "generation.search=diverse_beam",
    "penalty_alpha": "generation.search=contrastive",
}
"""By another toolkit's name of an option: a key that several configurations have, or a key with the value that has the
same effect; of several, separated by ``|``, those that a command has. Other keys declare their ``other_names``."""

OTHER_VALUES = {
    "gpu": "cuda",
    "fp32": "float32",
    "fp16": "float16",
    "half": "float16",
    "hf": "huggingface",
    "onnx": "export",
    "bf16": "bfloat16",
    "tqdm": "bar",
    "simple": "lines",
}
"""By another name of a value, in small letters: the value of seqgen with that meaning."""


def similar_keys(name: str, known: Mapping[str, Sequence[str]]) -> list[str]:
    """Find the keys that a name probably means, the most probable first.

    Keys whose last part equals that of the name come first (``beam`` means ``generation.beam``), then those with this
    name in other toolkits. Without either, it is the key with the most similar spelling.

    Args:
        name: the key or option that the user gave, such as ``lr``, ``--max-tokens`` or ``generation.beem``.
        known: the keys that exist, each with its names in other toolkits.

    Returns:
        At most three keys; keys of ``OTHER_NAMES`` may be ``KEY=VALUE``.
    """
    if not name.startswith("criterion."):  # the decoding keys of a criterion are seldom meant
        known = {key: names for key, names in known.items() if not key.startswith("criterion.decode.")}
    wanted = name[:100].lstrip("-").replace("-", "_")
    last = wanted.rpartition(".")[2]
    last_parts = {key: key.rpartition(".")[2] for key in known}
    exact = [key for key, part in last_parts.items() if part == last]
    other = [key for key in _keys_of_other_name(last, known) if not (exact and "=" in key)]
    found = list(dict.fromkeys([*exact, *other]))
    if not found and "." not in wanted:
        parts = difflib.get_close_matches(wanted, last_parts.values(), n=1, cutoff=0.7)
        return [key for key, part in last_parts.items() if part in parts][:3]
    found.sort(key=lambda key: key.partition(".")[0] != wanted.partition(".")[0])  # keys of the named group first
    return (found or difflib.get_close_matches(wanted, known, n=1, cutoff=0.6))[:3]


def _keys_of_other_name(name: str, known: Mapping[str, Sequence[str]]) -> list[str]:
    """The known keys that have a name in another toolkit, and ``KEY=VALUE`` of ``OTHER_NAMES``."""
    special = [item for item in OTHER_NAMES.get(name, "").split(" | ") if item.partition("=")[0] in known]
    return [key for key, names in known.items() if name in names] + special


def did_you_mean(name: str, known: Mapping[str, Sequence[str]]) -> str:
    """Suggest existing keys for one that does not exist.

    Args:
        name: the key that the user gave.
        known: see ``similar_keys``.

    Returns:
        A phrase such as ``" (did you mean 'generation.beam'?)"``; empty if no key is similar.
    """
    found = similar_keys(name, known)
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""
