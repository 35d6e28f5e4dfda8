"""Class flags that state properties of the methods of a class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from seqgen.hooks import Hooked
from seqgen.renamed import RenamedMembers, keep_former_members

Flags: TypeAlias = Mapping[str, tuple[str, ...]]
"""The methods that each flag describes."""


class Flagged(RenamedMembers, Hooked):
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
        keep_former_members(cls)  # of the flags that were set here


def _level(cls: type, name: str) -> int:
    """The place of the class that defines a name in the method resolution order; the order's length if none does."""
    return next((level for level, ancestor in enumerate(cls.__mro__) if name in vars(ancestor)), len(cls.__mro__))
