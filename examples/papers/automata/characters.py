"""The characters of a grammar: escapes and sets of ranges such as ``[^a-z]``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

ESCAPE = r'\\(?:[nrt\\"\[\]]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})'
NAMED = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True)
class Terminal:
    """One character of a set of ranges, or with ``negated`` one outside it; ``line`` is where the file has it."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False
    line: int = field(default=0, compare=False)

    def reads(self, character: str) -> bool:
        """True if the set has a character."""
        return any(low <= character <= high for low, high in self.ranges) != self.negated


ANY = Terminal((), True)
"""Reads every character."""


def literal(text: str, line: int = 0) -> tuple[Terminal, ...]:
    """The characters of a text with escapes, each as a set.

    Raises:
        ValueError: an escape is not a character.
    """
    return tuple(Terminal(((character, character),), line=line) for character in _characters(text))


def ranges(text: str, line: int = 0) -> Terminal:
    """The text between the brackets of ``[a-z_]`` or ``[^a-z_]``, as a set; a last ``-`` means itself.

    Raises:
        ValueError: a range is empty, or an escape is not a character.
    """
    negated = text.startswith("^") and len(text) > 1
    written = re.findall(rf"{ESCAPE}|[^\\]", text[negated:])
    found, rest = [], list(zip(written, _characters(text[negated:]), strict=True))[::-1]
    while rest:
        low = high = rest.pop()[1]
        if len(rest) > 1 and rest[-1][0] == "-":
            high = rest[-2][1]
            del rest[-2:]
        if high < low:
            raise ValueError(f"the empty range {low}-{high}")
        found.append((low, high))
    return Terminal(tuple(found), negated, line)


def _characters(text: str) -> list[str]:
    return [_character(written) for written in re.findall(rf"{ESCAPE}|[^\\]", text)]


def _character(written: str) -> str:
    if len(written) <= 2:
        return NAMED.get(written[1:], written[-1])
    if (code := int(written[2:], 16)) >= 0x110000:
        raise ValueError(f"{written}, which is no character")
    return chr(code)
