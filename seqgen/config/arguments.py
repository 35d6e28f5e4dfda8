"""Arguments of a command: ``key=value`` overrides of a configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from seqgen.config.values import parse_text
from seqgen.errors import ConfigError
from seqgen.registry import DECODING_COMPONENTS


def split_argument(override: str) -> tuple[str, str]:
    """Split ``key=value``.

    Raises:
        ConfigError: it has another form, or the key is one of Hydra's own.
    """
    if override.startswith(("+", "~")):
        raise ConfigError(f"{override!r}: keys can be neither added nor deleted; give a known key as key=value")
    key, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.\-]*", key):
        raise ConfigError(f"{override!r} is not of the form key=value; --help lists the keys")
    if key == "hydra" or key.startswith("hydra."):
        raise ConfigError(f"{override!r}: Hydra's own keys cannot be set; --help lists the keys")
    return key, value


def repeated(overrides: Sequence[str]) -> list[str]:
    """What the user should know about keys with two values; the last one counts.

    Args:
        overrides: the arguments that the user typed; words without ``=`` are not looked at.

    Returns:
        A sentence for each value that is not used.
    """
    found, given = [], dict[str, str]()
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals and given.get(key, value) != value:
            found.append(f"{key}={given[key]} is not used, because {key}={value} comes later")
        given[key] = value
    return found


def given_values(config: Any, group: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The values of one group that the user gave, including values that equal the defaults.

    Args:
        config: what ``compose`` made of the overrides.
        group: name of the group, such as ``"generation"``.
        overrides: ``key=value`` arguments.

    Returns:
        Values by key. Keys of decoding components (``search.groups``) are in the value of ``components``.
    """
    keys = [split_argument(override)[0].partition(".") for override in overrides]
    names = dict.fromkeys(key for owner, _, key in keys if owner == group and key)
    if group == "generation" and any(owner in DECODING_COMPONENTS for owner, _, _ in keys):
        names["components"] = None
    return {name: getattr(getattr(config, group), name) for name in names}


def text_values(overrides: Sequence[str], key: str, annotation: Any = list[str]) -> list[str]:
    """The strings that a key is set to; if it is set several times, the last override counts.

    Args:
        overrides: ``key=value`` arguments.
        key: a key whose value is a string or a list of strings.
        annotation: the type of its value.

    Raises:
        ConfigError: a list is written without brackets.
    """
    given = [value for name, _, value in (override.partition("=") for override in overrides) if name == key]
    found = parse_text(key, given[-1], annotation) if given else []
    return [found] if isinstance(found, str) else found or []
