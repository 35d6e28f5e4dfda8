"""Limits of a pipeline of the ``tokenizers`` library, and how its failures are reported.

The steps of a ``tokenizer.json`` rewrite a text one after the other. Thirty-two steps that replace each character by
two make four billion characters of one, and the library has no limit. Therefore the steps are checked first.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from typing import Any

from seqgen.errors import DataError

MAX_GROWTH = 1000
"""Maximum factor by which a text may grow; that of T5 and related tokenizers is below 50."""

_GROWTH = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 3, "ByteLevel": 2}
"""Maximum factor by which a step of each type lets a text grow; 2 for other types."""
_SHRINKING = frozenset({"Strip", "StripAccents", "Nmt", "Fuse", "Split", "Whitespace", "WhitespaceSplit", "Digits"})
"""Types of steps that never make a text longer."""
_NESTED = ("normalizers", "pretokenizers", "decoders")


def check_growth(pipeline: dict[str, Any], origin: str) -> None:
    """Check that the steps of a pipeline cannot make a text more than ``MAX_GROWTH`` times longer.

    Args:
        pipeline: the content of a ``tokenizer.json``.
        origin: the file, for messages.

    Raises:
        DataError: they can, or a table in them is damaged.
    """
    try:
        encoding = _growth(pipeline.get("normalizer")) * _growth(pipeline.get("pre_tokenizer"))
        decoding = _growth(pipeline.get("decoder"))
    except ValueError as error:
        raise DataError(f"{origin} is damaged: {error}; copy it again") from None
    if max(encoding, decoding) > MAX_GROWTH:
        raise DataError(
            f"{origin} has steps (such as Replace) that can make a text more than {MAX_GROWTH} times longer; "
            "use the tokenizer as its authors published it"
        )


def _growth(step: Any) -> float:
    """Maximum factor by which a step, including its inner steps, lets a text grow."""
    if not isinstance(step, dict):
        return 1.0
    kind = str(step.get("type"))
    if kind == "Sequence":
        total = 1.0
        for key in _NESTED:
            for inner in step[key] if isinstance(step.get(key), list) else []:
                total = min(total * _growth(inner), MAX_GROWTH + 1.0)  # the limit avoids an overflow
        return total
    if kind == "Replace":
        return _growth_of_replacing(step.get("pattern"), len(str(step.get("content", ""))))
    if kind == "Prepend":
        return 1.0 + len(str(step.get("prepend", "")))
    if kind == "Precompiled":
        return _longest_in_charsmap(step.get("precompiled_charsmap"))
    return 1.0 if kind in _SHRINKING else _GROWTH.get(kind, 2.0)


def _growth_of_replacing(pattern: Any, length: int) -> float:
    text = pattern.get("String") if isinstance(pattern, dict) else pattern
    if isinstance(text, str) and text:
        return max(1.0, length / len(text))
    return 1.0 + length  # a regular expression may match the empty text, between any two characters


def _longest_in_charsmap(encoded: Any) -> float:
    """Length of the longest replacement in SentencePiece's table: size of the index, index, null-terminated texts.

    Raises:
        ValueError: it is no such table; the library would panic, and print that.
    """
    try:
        table = base64.b64decode(encoded, validate=True)
        size = int.from_bytes(table[:4], "little")
        table[4 + size :].decode()
        if size < 4 or size % 4 or len(table) < 4 + size:
            raise ValueError
    except (ValueError, TypeError):
        raise ValueError("a precompiled_charsmap is not one of SentencePiece") from None
    return float(max(1, *(len(text.decode()) for text in table[4 + size :].split(b"\0"))))


@contextlib.contextmanager
def pipeline_errors(what: str) -> Iterator[None]:
    """Turn errors of the library into a ``DataError``.

    The library panics if a regular expression takes too many steps; a panic is not an ``Exception``.

    Args:
        what: beginning of the message, such as a file.

    Raises:
        DataError: in place of the library's error.
    """
    try:
        yield
    except DataError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {' '.join(str(error).split())[:300]}") from None
