"""The source that each member of an ensemble reads, by name."""

from __future__ import annotations

import re

from seqgen.core.errors import ConfigError
from seqgen.core.member import EMPTY, INPUT, MemberSpec
from seqgen.registry import MEMBER_SOURCES

_FIELD = re.compile(r"field([1-9]\d?)")


def input_of(member: MemberSpec) -> str:
    """The source that is encoded for a member: ``source``, or ``"input"`` if a subclass makes another source."""
    source = member.source
    return source if source == EMPTY or _FIELD.fullmatch(source) or MEMBER_SOURCES.find(source) else INPUT


def field_of(source: str) -> int:
    """The number ``N`` of ``"fieldN"``; 0 for any other source.

    Raises:
        ConfigError: ``source`` is not a valid source.
    """
    if source in (INPUT, EMPTY) or MEMBER_SOURCES.find(source) is not None:
        return 0
    if (found := _FIELD.fullmatch(source)) is None:
        raise ConfigError(
            f"generation.member_sources: {source!r} is not a source; a member reads input, empty, fieldN (the N-th "
            "tab-separated field of the line), or a source that is registered"
        )
    return int(found[1])
