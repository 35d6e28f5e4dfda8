"""Errors of libraries and of the system become one sentence for the user."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

from seqgen.core.contract import Hooked, defined_in
from seqgen.core.errors import DataError, UserError


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


def missing_hook(error: NotImplementedError) -> str:
    """Name the hook that a class does not define, for a message; empty if the error has another reason.

    Args:
        error: what the base class raised.
    """
    frame = list(traceback.walk_tb(error.__traceback__))[-1][0]
    owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
    cls = owner if isinstance(owner, type) else type(owner)
    if error.args or not issubclass(cls, Hooked):
        return ""
    return f"{cls.__name__} ({defined_in(cls)}) does not define {frame.f_code.co_name}, which it needs"
