"""Values of a configuration: reading them from text, and checking their types and ranges."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seqgen.config.keys import OTHER_VALUES
from seqgen.errors import ConfigError, nearest, shown

LARGEST = 1 << 63
"""Integers in a configuration are smaller than this, as PyTorch's are."""

_ITEM = re.compile(  # of a list of strings: in quotes as a whole, or up to the next comma
    r"""\s*(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>(?:\\.|[^'\\])*)')\s*(?:,|\Z)|(?P<bare>[^,]*)(?:,|\Z)""",
    re.DOTALL,
)
_WORDS: dict[Any, tuple[str, str, str]] = {
    int: ("a whole number", "whole numbers", "1,2"),
    float: ("a number", "numbers", "0.1,0.2"),
    bool: ("true or false", "true or false", "true,false"),
    str: ("text", "texts", "a,b"),
    type(None): ("null", "null", "null"),
}
"""The values of a type in words: one value, several values, and an example of several."""
_ESCAPES = {"n": "\n", "t": "\t"}


def check_ranges(config: Any, prefix: str = "") -> None:
    """Check every value against the choices and the range that its field declares.

    Args:
        config: a configuration; nested groups are checked too.
        prefix: prefix of its keys, for messages.

    Raises:
        ConfigError: a value is not among the choices, out of range, or no finite number.
    """
    for field in dataclasses.fields(config):
        value, key = getattr(config, field.name), prefix + field.name
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check_ranges(value, f"{key}.")
        for item in value if isinstance(value, list) else [value]:
            check_value(key, item, field.metadata)


def check_value(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Check one value.

    Args:
        key: its key, for messages.
        value: the value; of a list, one item.
        metadata: that of the field, see ``seqgen.config.option``.

    Raises:
        ConfigError: it is not among the choices, out of range, no finite number, or text with a NUL.
    """
    choices, minimum, maximum = (metadata.get(name) for name in ("choices", "minimum", "maximum"))
    if choices and value is not None and value not in choices:
        names = ", ".join(filter(None, choices)) + (", or empty" if "" in choices else "")
        meant = nearest(OTHER_VALUES.get(str(value).lower(), str(value)), choices)
        raise ConfigError(f"{key}={str(value)[:80]} is none of: {names}{meant}")
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{key} has the character NUL (U+0000), which no file name and no text has; remove it")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value} is not a finite number")
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ConfigError(f"{key}={shown(value)} does not fit into 64 bits; the largest value is {LARGEST - 1}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if minimum is not None and not value >= minimum:
            raise ConfigError(f"{key}={value} is below its minimum, {minimum}")
        if maximum is not None and not value <= maximum:
            raise ConfigError(f"{key}={value} is above its maximum, {maximum}")


def is_text(annotation: Any) -> bool:
    """Whether values of a type are taken literally: ``str``, ``str | None``, ``list[str]``."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return any(is_text(part) for part in typing.get_args(annotation))
    return annotation is str or (typing.get_origin(annotation) is list and typing.get_args(annotation) == (str,))


def parse_text(key: str, value: str, annotation: Any) -> str | list[str] | None:
    """Read the value of a string-typed key: ``[a,b]`` for a list, ``null`` for ``None``, anything else literally.

    Args:
        key: the key, for messages.
        value: what the user typed.
        annotation: the type of the field; see ``is_text``.

    Raises:
        ConfigError: a list is written without brackets: ``a,b`` could be two texts, or one with a comma.
    """
    if typing.get_origin(annotation) is list:
        if value.startswith("[") and value.endswith("]"):
            return list(_parse_items(value[1:-1]))
        if "," in value:
            raise ConfigError(
                f"'{key}={value}' cannot be used: write {key}=[{value}] for several values, or "
                f"{key}={text_list([value])} for one that contains commas"
            )
        return [value] if value else []
    if value == "null" and annotation is not str:
        return None
    return value


def text_list(items: Sequence[str]) -> str:
    """Write strings as the value of a key, ``["a","b"]``; quotes, backslashes and line breaks are escaped."""
    escaped = (item.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for item in items)
    return "[" + ",".join(f'"{item}"' for item in escaped) + "]"


def _parse_items(text: str) -> Iterator[str]:
    """Split a list at its commas, except inside quotes: ``a b, "c, d ", 's`` gives ``a b``, ``c, d `` and ``'s``."""
    for found in _ITEM.finditer(text):
        quoted = found["double"] if found["double"] is not None else found["single"]
        if quoted is not None:
            yield re.sub(r"\\([nt\"'\\])", lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted)
        elif bare := found["bare"].strip():
            yield bare


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value has a field's type; an integer is also a float, and a truth value is no number."""
    if isinstance(annotation, types.UnionType):
        return any(fits(value, part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if typing.get_origin(annotation) is list:
        return isinstance(value, list) and all(fits(item, typing.get_args(annotation)[0]) for item in value)
    if annotation is type(None):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(annotation, type) and isinstance(value, annotation)


def describe(annotation: Any) -> str:
    """What values a type has, in words for messages: ``list[int] | None`` is "a list of whole numbers, or null"."""
    parts = typing.get_args(annotation)
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return ", or ".join(describe(part) for part in parts)
    if typing.get_origin(annotation) is list:
        _, plural, example = _WORDS.get(parts[0], ("", "values", "a,b"))
        return f"a list of {plural}, such as [{example}]"
    if typing.get_origin(annotation) is dict:
        return "keys and values, such as {a:1}"
    return _WORDS[annotation][0] if annotation in _WORDS else str(getattr(annotation, "__name__", annotation))
