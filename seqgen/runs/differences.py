"""The keys whose values differ between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqgen.registry import GROUPS
from seqgen.runs.run import Run, defaults_of

MISSING = "-"
"""Stands for the value of a key that a run does not have, because its component has no such key."""
_IGNORED = ("common.user_files.",)


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The keys whose values differ.

    A key of a component that not all runs use is listed only if a run has set it to another value than its default.

    Args:
        runs: the runs; those whose configuration cannot be read are left out.

    Returns:
        For each key, the value of each run, ``MISSING`` if it has none.
    """
    readable = [run.config for run in runs if run.config]
    keys = dict.fromkeys(key for config in readable for key in config if not key.startswith(_IGNORED))
    differing = [group for group in GROUPS if len({config.get(f"{group}._name") for config in readable}) > 1]
    defaults = [defaults_of(config) for config in readable]
    found = {}
    for key in keys:
        values = [config.get(key, MISSING) for config in readable]
        if all(value == values[0] for value in values):
            continue
        if key.partition(".")[0] in differing and MISSING in values and _are_defaults(key, readable, defaults):
            continue
        found[key] = [run.config.get(key, MISSING) for run in runs]
    return found


def _are_defaults(key: str, configs: Sequence[Mapping[str, Any]], defaults: Sequence[Mapping[str, Any]]) -> bool:
    pairs = zip(configs, defaults, strict=True)
    return all(key not in config or (key in own and config[key] == own[key]) for config, own in pairs)


def shown(value: Any) -> str:
    """A value as a user would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(shown, value))}]"
    return "null" if value is None else str(value) or "''"
