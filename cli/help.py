"""The ``--help`` of a command: its component groups, their presets, and every key with default and one line of help."""

from __future__ import annotations

import dataclasses
from typing import Any

from seqgen.component_keys import decodes
from seqgen.config import SINGLE_COMPONENTS
from seqgen.config_keys import known_keys
from seqgen.registry import DECODING_COMPONENTS, GROUPS, Registry


def help_text(schema: type, program: str, description: str) -> str:
    """The text that ``--help`` prints.

    Args:
        schema: the root dataclass of its configuration.
        program: the command's name.
        description: what it does.

    Returns:
        The text.
    """
    root = schema()
    groups = [GROUPS[f.name] for f in dataclasses.fields(root) if f.name in GROUPS]
    parts = [f"{program}: {description}", f"Usage: {program} [key=value ...]"]
    decoding = list(DECODING_COMPONENTS.items()) if decodes(schema) else []
    chosen = [_choices(registry, registry.group) for registry in groups]
    chosen += [_choices(registry, f"generation.{chooser}") for _, (registry, chooser) in decoding]
    if chosen:
        parts.append("Components\n" + "\n".join(part for part in chosen if part))
    parts.append("Keys\n" + _keys(root))
    parts += [_component_keys(registry, registry.group) for registry in groups]
    parts += [_component_keys(registry, f"generation.{chooser}", group) for group, (registry, chooser) in decoding]
    return "\n\n".join(part for part in parts if part)


def _choices(registry: Registry, chooser: str) -> str:
    lines = []
    for entry in registry.entries():
        presets = f" (presets: {', '.join(sorted(entry.presets))})" if entry.presets else ""
        lines.append(f"  {chooser}={entry.name}{presets}")
    return "\n".join(lines)


def _component_keys(registry: Registry, chooser: str, group: str = "") -> str:
    """The keys of each component of a registry; ``group`` is the prefix of decoding components' keys."""
    parts = []
    for entry in registry.entries():
        prefix = f"{registry.group}." if not group or group in SINGLE_COMPONENTS else f"{group}.{entry.name}."
        keys = _keys(entry.config(), prefix)
        if keys:
            parts.append(f"Keys with {chooser}={entry.name}\n{keys}")
    return "\n\n".join(parts)


def _keys(config: Any, prefix: str = "") -> str:
    lines = []
    for key, field, value in known_keys(config):
        if field.name in ("components", "user_files"):
            continue  # set by the keys of components, and by training
        choices = field.metadata.get("choices")
        text = field.metadata.get("help", "") + (f" ({'|'.join(choices)})" if choices else "")
        lines.append(f"  {f'{prefix}{key}={_show(value)}':<44} {text}")
    return "\n".join(lines)


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_show(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_show(item)}" for key, item in value.items()) + "}"
    return str(value)
