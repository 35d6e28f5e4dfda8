"""What the body of a user's class says: hooks, which seqgen calls or reads, and flags that describe methods."""

from __future__ import annotations

import difflib
import inspect
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

from seqgen.errors import ConfigError

SIMILARITY = 0.85
"""Names at least this similar (``difflib.SequenceMatcher.ratio``) are taken for misspelt: one letter of seven."""


class Hooked:
    """A base class with hooks: a user's subclass that misspells one is refused, because nothing would call it.

    A name that begins with an underscore is never taken for a hook.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not is_built_in(cls):
            wrong = [
                f"{cls.__name__} defines {name!r}, which nothing calls or reads; did you mean {hook!r}?, or, if it is "
                f"no hook, rename it, for example _{name}"
                for name, hook in misspelt(cls)
            ]
            if wrong:
                raise ConfigError(f"{origin(cls)}: {'; '.join(wrong)}")


def misspelt(cls: type) -> Iterator[tuple[str, str]]:
    """Find the names in the body of a class that are close to a hook's name.

    Args:
        cls: a subclass of a class of seqgen.

    Yields:
        The name, and the hook's name.
    """
    hooks = [name for home in cls.__mro__[1:] if is_built_in(home) for name in vars(home) if not name.startswith("_")]
    for name in vars(cls):
        if name.startswith("_") or any(name in vars(home) for home in cls.__mro__[1:]):
            continue
        near = difflib.get_close_matches(name, hooks, n=1, cutoff=SIMILARITY)
        if near := near or [hook for hook in hooks if sorted(hook) == sorted(name)]:
            yield name, near[0]


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


def origin(cls: Any) -> str:
    """Where a class or function is defined, as ``FILE:LINE``."""
    try:
        return f"{inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        return str(cls.__module__)


def is_built_in(cls: type) -> bool:
    """Whether a class is one of seqgen's own."""
    return cls.__module__.partition(".")[0] == "seqgen"


Flags: TypeAlias = Mapping[str, tuple[str, ...]]
"""The methods that each flag describes."""


class Flagged(Hooked):
    """A base class with flags that describe methods, and that a subclass loses if it overrides these methods.

    A flag states a property of some methods, for example that a search strategy has no state. A subclass that overrides
    one of these methods and does not set the flag itself gets the default, which is the value in the class that
    declares the flag. Otherwise it would inherit a property of code that it has replaced. A flag is set in the body of
    a class, to a value or by a property. A method can also be a flag, if it is a faster equivalent of other methods::

        class Quiet(BeamSearch):
            can_merge = True  # without this line it is False, because `step` is overridden

            def step(self, context, lprobs, scores): ...
    """

    flags: ClassVar[Flags] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for flag, methods in cls.flags.items():
            stated = _level(cls, flag)
            if any(_level(cls, method) < stated for method in methods):
                declared = next(ancestor for ancestor in reversed(cls.__mro__) if flag in vars(ancestor))
                setattr(cls, flag, vars(declared)[flag])


def _level(cls: type, name: str) -> int:
    """The place of the class that defines a name in the method resolution order; the order's length if none does."""
    return next((level for level, ancestor in enumerate(cls.__mro__) if name in vars(ancestor)), len(cls.__mro__))
