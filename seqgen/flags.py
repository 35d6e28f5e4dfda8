"""Class flags that state properties of the methods of a class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from seqgen.renamed import RenamedMembers, keep_former_members

Flags: TypeAlias = Mapping[str, tuple[str, ...]]
"""For each flag the methods that it is about."""


class Flagged(RenamedMembers):
    """A base class whose flags hold only for the methods for which they were stated.

    A flag states a property of some methods, for instance that a search strategy has no state. A
    subclass that overrides one of them and does not state the flag itself has the safe value, which is that of the
    class that declares the flag; otherwise it would inherit a promise about code that it has replaced. A flag is stated
    in the body of a class, by a value or by a property. A method can be a flag as well, where it stands in for others::

        class Quiet(BeamSearch):
            can_merge = True  # without this line False, since `step` is a new one

            def step(self, step, lprobs, scores): ...
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
    """How many classes an attribute is looked up in before the one that has it; all of them where none has."""
    return next((level for level, ancestor in enumerate(cls.__mro__) if name in vars(ancestor)), len(cls.__mro__))
