"""Errors that are reported as one sentence instead of a traceback."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 3


class UserError(Exception):
    """Something that the user gave cannot be used.

    The message is one sentence (or a short list) that says what is wrong, where, and what to do. The commands print it
    and exit with code 2.
    """


class ConfigError(UserError):
    """A configuration key, value, preset or registered name that does not exist or cannot be used here."""


class DataError(UserError):
    """A text file, tokenizer or vocabulary that cannot be used."""


class CheckpointError(UserError):
    """A checkpoint or run folder that cannot be read or written, does not match the model, or is in use."""


class DecodingError(UserError, ValueError):
    """Scores from which nothing can be decoded, such as NaN."""


class ResourceError(UserError):
    """A failure of the machine: memory ran out, or a training process ended or does not respond."""


def nearest(name: str, known: Iterable[str], count: int = 1) -> str:
    """Suggest the known names that are most similar to ``name``.

    Args:
        name: the name that the user gave.
        known: the names that exist.
        count: maximum number of names to suggest.

    Returns:
        A phrase such as ``" (did you mean 'optimization.max_update'?)"``; empty if no name is similar.
    """
    matches = difflib.get_close_matches(name[:100], list(known), n=count, cutoff=0.6)
    return f" (did you mean {' or '.join(map(repr, matches))}?)" if matches else ""


def shown(value: Any) -> str:
    """Format a value for a message.

    Args:
        value: any value; it may be huge if it comes from a damaged file.

    Returns:
        Its ``repr``, shortened.
    """
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python does not print numbers of thousands of digits
        return f"a {type(value).__name__} that is too long to be shown"


def listing(names: Sequence[str], limit: int = 5) -> str:
    """The first names of a list for a message, and how many more there are: ``a, b and 3 more``.

    A name that is long or has line breaks, such as one of a damaged file, is shown as ``shown`` does.
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    usual = (name if name.isprintable() and len(name) < 200 else shown(name) for name in names[:limit])
    return f"{', '.join(usual)}{more}"
