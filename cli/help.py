"""The ``--help`` of a command: its component groups, their presets, and every key with default and one line of help."""

from __future__ import annotations

import dataclasses
from typing import Any

from seqgen.compose import GROUPS, known_keys
from seqgen.registry import Registry


def help_text(schema: type, program: str, description: str) -> str:
    """Describe a command.

    Args:
        schema: the root dataclass of its configuration.
        program: the command's name.
        description: what it does.

    Returns:
        The whole help.
    """
    root = schema()
    groups = [GROUPS[f.name] for f in dataclasses.fields(root) if f.name in GROUPS]
    parts = [f"{program}: {description}", f"Usage: {program} [key=value ...]"]
    if groups:
        parts.append("Components\n" + "\n".join(_choices(registry) for registry in groups))
    parts.append("Keys\n" + _keys(root))
    parts += [_component_keys(registry) for registry in groups]
    return "\n\n".join(part for part in parts if part)


def _choices(registry: Registry) -> str:
    lines = []
    for entry in registry.entries():
        presets = f" (presets: {', '.join(sorted(entry.presets))})" if entry.presets else ""
        lines.append(f"  {registry.group}={entry.name}{presets}")
    return "\n".join(lines)


def _component_keys(registry: Registry) -> str:
    parts = []
    for entry in registry.entries():
        keys = _keys(entry.config(), f"{registry.group}.")
        if keys:
            parts.append(f"Keys with {registry.group}={entry.name}\n{keys}")
    return "\n\n".join(parts)


def _keys(config: Any, prefix: str = "") -> str:
    lines = []
    for key, field, value in known_keys(config):
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
    return str(value)
