"""Errors that are reported as one sentence instead of a traceback."""

from __future__ import annotations

import contextlib
import difflib
import reprlib
from collections.abc import Iterable, Iterator, Sequence
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


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn errors of a library into a ``DataError``, panics of one that is written in Rust included.

    Args:
        what: beginning of the message, such as a file.

    Raises:
        DataError: instead of the library's error.
    """
    try:
        yield
    except DataError:
        raise
    except BaseException as error:  # a panic is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {' '.join(str(error).split())[:300]}") from None


@contextlib.contextmanager
def reading_errors(path: Any, kind: type[UserError], missing: str = "") -> Iterator[None]:
    """Report a failure to read a file in one sentence.

    Args:
        path: the file.
        kind: the class of the error.
        missing: the message if there is no such file; empty for one that says so.

    Raises:
        UserError: the file is missing or cannot be read.
    """
    try:
        yield
    except FileNotFoundError:
        raise kind(missing or f"there is no file {path}") from None
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror or error}") from None


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


def printable(message: str) -> str:
    """Escape what a terminal could take for a command.

    Args:
        message: a message, which may show text of a malicious file.

    Returns:
        The message with control characters and the like as ``\\x1b``; line breaks and tabs are kept.
    """
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in message
    )
