"""Spans that outputs must keep, numbers whose separators may change, and brackets."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from seqgen.extend import ConfigError, nearest, read_yaml

PATTERNS = {kind: "|".join(each) for kind, each in read_yaml(Path(__file__).with_name("patterns.yaml")).items()}
KINDS = (*PATTERNS, "numbers", "signs", "case")
MOST = 200  # spans of a line that are searched for in its outputs
_NUMBER = r"(?<!\w)(?<!\d[.,])[$€£¥]?\d+(?:[.,]\d+)*[%€]?(?!\w)"
_DIGITS = re.compile(r"\d+(?:[.,'’\u00a0\u202f]\d+)*")


class Span(NamedTuple):
    """A span of a text: where it begins and ends, its text, and whether it is a number."""

    start: int
    end: int
    text: str
    number: bool


def pattern_of(entries: Sequence[str]) -> str:
    """The regular expression of spans; adjacent ones, such as tags, are one, but numbers.

    Args:
        entries: ``generation.protect``.

    Raises:
        ConfigError: an entry is no kind and cannot be used as a regular expression.
    """
    for entry in (entry for entry in entries if entry not in KINDS and not _is_pattern(entry)):
        raise ConfigError(
            f"generation.protect={entry}: give {', '.join(KINDS)}{nearest(entry, KINDS)}, or a regular expression with "
            "other signs than small letters and without groups, that does not match an empty text"
        )
    kept = [PATTERNS.get(entry, entry) for entry in entries if entry in PATTERNS or entry not in KINDS]
    number = [f"(?P<number>{_NUMBER})"] * ("numbers" in entries)
    return "|".join([*[f"(?:{'|'.join(kept)})+"] * bool(kept), *number])


def _is_pattern(entry: str) -> bool:
    try:
        found = re.compile(f"(?!)|{entry}")
    except re.error:
        return False
    empty = any(not each[0] for text in ("", f" {string.printable}") for each in found.finditer(text))
    return not (found.groups or empty or re.fullmatch("[a-z]*", entry))


def find_spans(pattern: str, text: str) -> list[Span]:
    """The first spans of a text, at most ``MOST``, in their order.

    Args:
        pattern: what ``pattern_of`` returned, or ``""`` for none.
        text: the text.
    """
    found = itertools.islice((each for each in re.finditer(pattern, text) if each[0]), MOST) if pattern else ()
    return [Span(*each.span(), each[0], each.lastgroup == "number") for each in found]


def missing(spans: Sequence[Span], source: str, output: str) -> list[Span]:
    """The spans of a source that its output does not have, or has more or less often; of numbers, less often.

    Args:
        spans: those of the source.
        source: the source.
        output: the output.
    """
    lost = [each for each in spans if not each.number and _count(each.text, source) != _count(each.text, output)]
    present = _DIGITS.findall(output)
    for span in (span for span in spans if span.number):
        same = next((each for each in present if readings(span.text) & readings(each)), None)
        if same is None or not set(span.text) & set("$€£¥%") <= set(output):
            lost.append(span)
        else:
            present.remove(same)
    return lost


def _count(text: str, inside: str) -> int:
    """How often a text occurs, not as a part of a word."""
    before, after = r"(?<!\w)" * text[0].isalnum(), r"(?!\w)" * text[-1].isalnum()
    return len(re.findall(before + re.escape(text) + after, inside))


def readings(number: str) -> set[str]:
    """What a number may be in one convention or another: ``1,234`` is ``1234`` or ``1.234``."""
    number, found = number.strip("$€£¥%"), set[str]()
    for thousands, decimal in (("[,'’\u00a0\u202f]", "[.]"), ("[.'’\u00a0\u202f]", ",")):
        if match := re.fullmatch(rf"(\d{{1,3}}(?:{thousands}\d{{3}})+|\d+)(?:{decimal}(\d+))?", number):
            found.add(".".join(filter(None, (re.sub(r"\D", "", match[1]), match[2]))))
    return found or {number}


def faults(spans: Sequence[Span], source: str, output: str) -> list[str]:
    """Notes on what an output lacks of its source.

    Args:
        spans: those of the source.
        source: the source.
        output: the output.
    """
    lost = missing(spans, source, output)
    notes = [f"the output lacks or repeats protected text: {span.text}" for span in lost if not span.number]
    if numbers := " ".join(span.text for span in lost if span.number):
        known = {value for each in _DIGITS.findall(source) for value in readings(each)}
        others = " ".join(each for each in _DIGITS.findall(output) if not readings(each) & known)
        notes.append(
            f"the output lacks numbers, {f'but has {others}' if others else 'or has them in words'}: {numbers}"
        )
    if len(spans) == MOST:
        notes.append(f"only the first {MOST} protected texts of the line are kept")
    if wrong := "".join(pair for pair in ("()", "[]", "{}") if _open(pair, source) != _open(pair, output)):
        notes.append(f"brackets of the output do not match: {wrong}")
    return notes


def _open(pair: str, text: str) -> int:
    return text.count(pair[0]) - text.count(pair[1])
