"""The contract with a user's class: the names of its hooks, flags that describe its methods, and what methods return.

A result of another shape or dtype often broadcasts, or fails much later in code that does not name the component;
therefore it is checked at each call.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from seqgen.core.errors import ConfigError, DecodingError

if TYPE_CHECKING:  # commands answer --version and misspelt keys before PyTorch is imported
    import torch
    from torch import Tensor

T = TypeVar("T")

SIMILARITY = 0.85
"""Names at least this similar (``difflib.SequenceMatcher.ratio``) are taken for misspelt: one letter of seven."""

FORMER = {
    "adjusts_scores": "changes_scores",
    "processes_itself": "applies_processors",
    "independent_rows": "continues_each_beam",
    "takes_constraints": "enforces_constraints",
}
"""Earlier names of flags, which no longer have an effect."""


class Hooked:
    """A base class with hooks: a user's subclass that misspells one is refused, because nothing would call it.

    A name that begins with an underscore is never taken for a hook.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not is_built_in(cls):
            wrong = [
                f"{cls.__name__} defines {name!r}, which nothing calls or reads (did you mean {hook!r}?); correct the "
                f"name, or, if it is no hook, rename it, for example to _{name}"
                for name, hook in find_misspelt(cls)
            ]
            if wrong:
                raise ConfigError(f"{defined_in(cls)}: {'; '.join(wrong)}")


def find_misspelt(cls: type) -> Iterator[tuple[str, str]]:
    """Find the names in the body of a class that are close to a hook's name, or its earlier name.

    Args:
        cls: a subclass of a class of seqgen.

    Yields:
        The name, and the hook's name.
    """
    hooks = [name for home in cls.__mro__[1:] if is_built_in(home) for name in vars(home) if not name.startswith("_")]
    for name in vars(cls):
        if name.startswith("_") or any(name in vars(home) for home in cls.__mro__[1:]):
            continue
        near = difflib.get_close_matches(FORMER.get(name, name), hooks, n=1, cutoff=SIMILARITY)
        if near := near or [hook for hook in hooks if sorted(hook) == sorted(name)]:
            yield name, near[0]


def defined_in(cls: Any) -> str:
    """The place where a class or function is defined, as ``FILE:LINE``."""
    try:
        return f"{inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        return str(cls.__module__)


def is_built_in(cls: type) -> bool:
    """True if a class belongs to seqgen."""
    return cls.__module__.partition(".")[0] == "seqgen"


Flags: TypeAlias = Mapping[str, tuple[str, ...]]
"""The methods that each flag describes."""


class Flagged(Hooked):
    """A base class with flags that describe methods, and that a subclass loses if it overrides these methods.

    A flag states a property of some methods, for example that a search strategy has no state. A subclass that overrides
    one of these methods and does not set the flag itself gets the flag's safe value. Otherwise it would inherit a
    property of code that it has replaced. A flag is set in the body of a class, to a value or by a property. A method
    can also be a flag, if it is a faster equivalent of other methods::

        class Quiet(BeamSearch):
            can_merge = True  # without this line it is False, because `step` is overridden

            def step(self, context, lprobs, scores): ...
    """

    flags: ClassVar[Flags] = {}
    """The flags of a class and the methods that each describes, in addition to those of its base classes."""

    safe_values: ClassVar[Mapping[str, Any]] = {}
    """The safe values of flags; that of any other flag is its value in the class that declares it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        flags: dict[str, tuple[str, ...]] = {}
        safe_values: dict[str, Any] = {}
        for ancestor in reversed(cls.__mro__):
            safe_values |= vars(ancestor).get("safe_values", {})
            for flag, methods in vars(ancestor).get("flags", {}).items():
                flags[flag] = tuple(dict.fromkeys((*flags.get(flag, ()), *methods)))
        cls.flags, cls.safe_values = flags, safe_values
        for flag, methods in flags.items():
            stated = _level(cls, flag)
            if any(_level(cls, method) < stated for method in methods):
                declared = next(ancestor for ancestor in reversed(cls.__mro__) if flag in vars(ancestor))
                setattr(cls, flag, safe_values.get(flag, vars(declared)[flag]))


def _level(cls: type, name: str) -> int:
    """The place of the class that defines a name in the method resolution order; the order's length if none does."""
    return next((level for level, ancestor in enumerate(cls.__mro__) if name in vars(ancestor)), len(cls.__mro__))


class ContractError(DecodingError):
    """A component does not return what its base class says."""


def check_returned(owner: Any, method: str, value: Any, kind: Callable[..., T]) -> T:
    """Check the type of what a method of a component returns.

    Args:
        owner: the component, its class, or a function instead of a component.
        method: name of the method.
        value: what it returned.
        kind: the class that it must be an instance of.

    Returns:
        The value.

    Raises:
        ContractError: it has another type.
    """
    expected: Any = kind
    if not isinstance(value, expected):
        given = "None; is a return statement missing?" if value is None else f"a {type(value).__name__}"
        raise contract_error(owner, method, f"must return a {expected.__name__} but returns {given}")
    found: T = value
    return found


def check_returned_tensor(
    owner: Any,
    method: str,
    value: Any,
    shape: tuple[int, ...],
    dtype: torch.dtype | None,
    device: torch.device,
    name: str = "",
) -> Tensor:
    """Check a tensor that a method of a component returns; see ``check_returned``.

    Args:
        owner: see ``check_returned``.
        method: see ``check_returned``.
        value: see ``check_returned``.
        shape: the shape that it must have; -1 for a dimension of any size.
        dtype: likewise; ``None`` for any floating-point dtype.
        device: likewise.
        name: the field of the result that has the tensor; empty if the tensor is the result.

    Raises:
        ContractError: it is no tensor, or has another shape or dtype or is on another device.
    """
    from torch import Tensor

    found = check_returned(owner, method, value, Tensor)
    if (found.shape, found.dtype, found.device) == (shape, dtype, device):
        return found
    sizes = tuple(own if size == -1 else size for own, size in zip(found.shape, shape, strict=False))
    right_dtype = found.is_floating_point() if dtype is None else found.dtype == dtype
    if (found.shape, found.device) != (sizes, device) or len(sizes) != len(shape) or not right_dtype:
        kind, wanted = dtype or "a floating-point dtype", str(tuple(shape)).replace("-1", "any")
        given = f"{tuple(found.shape)} of {found.dtype} on {found.device}"
        raise contract_error(owner, method, f"must return {name}{wanted} of {kind} on {device} but returns {given}")
    return found


def contract_error(owner: Any, method: str, what: str) -> ContractError:
    """The error for a method that does not return what it should.

    Args:
        owner: see ``check_returned``.
        method: see ``check_returned``.
        what: what it must return, and what it returns.
    """
    named = owner if inspect.isroutine(owner) or isinstance(owner, type) else type(owner)
    called = named.__name__ if method == "__call__" else f"{named.__name__}.{method}"
    return ContractError(f"{called} ({defined_in(named)}) {what}")
