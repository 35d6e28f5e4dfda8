"""Names of hooks: methods and class attributes that seqgen calls or reads in the user's own classes."""

from __future__ import annotations

import difflib
import inspect
import traceback
from collections.abc import Iterator
from typing import Any

from seqgen.errors import ConfigError
from seqgen.renamed import HOOKS, MEMBERS

SIMILARITY = 0.85
"""Names at least this similar (``difflib.SequenceMatcher.ratio``) are taken for misspelt: one letter of seven."""


class Hooked:
    """A base class with hooks: a user's subclass that misspells one is refused, because nothing would call it.

    A name that begins with an underscore is never taken for a hook.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not _is_built_in(cls):
            for name, hook in misspelt(cls):
                raise ConfigError(
                    f"{origin(cls)}: {cls.__name__} defines {name!r}, which nothing calls or reads; {hook}, or, if it "
                    f"is no hook, rename it, for example _{name}"
                )


def misspelt(cls: type) -> Iterator[tuple[str, str]]:
    """Find the names in the body of a class that are close to a hook's name, or were hooks of an earlier version.

    Args:
        cls: a subclass of a class of seqgen.

    Yields:
        The name, and what to do instead.
    """
    homes = [home for home in cls.__mro__[1:] if _is_built_in(home)]
    hooks = [name for home in homes for name in vars(home) if not name.startswith("_") and name not in MEMBERS]
    for name in vars(cls):
        if name.startswith("_") or any(name in vars(home) for home in cls.__mro__[1:]):
            continue
        removed = next((HOOKS[key] for home in homes if (key := f"{home.__name__}.{name}") in HOOKS), None)
        renamed = [MEMBERS[name]] if MEMBERS.get(name) in hooks else []
        near = renamed or difflib.get_close_matches(name, hooks, n=1, cutoff=SIMILARITY)
        near = near or [hook for hook in hooks if sorted(hook) == sorted(name)]
        if removed or near:
            yield name, removed or f"did you mean {near[0]!r}?"


def missing(error: NotImplementedError) -> str:
    """Which hook a class does not define, for a message; empty if the error has another reason.

    Args:
        error: what the base class raised.
    """
    frame = list(traceback.walk_tb(error.__traceback__))[-1][0]
    owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
    cls = owner if isinstance(owner, type) else type(owner)
    if error.args or not issubclass(cls, Hooked):
        return ""
    return f"{cls.__name__} ({origin(cls)}) does not define {frame.f_code.co_name}, which it needs"


def origin(cls: type) -> str:
    """Where a class is defined, as ``FILE:LINE``."""
    try:
        return f"{inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        return cls.__module__


def _is_built_in(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "seqgen"
