"""What the methods of a user's component return, checked at each call.

A result of another shape or dtype often broadcasts, or fails much later in code that does not name the component.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from seqgen.errors import DecodingError
from seqgen.system.hooks import origin

T = TypeVar("T")


class ContractError(DecodingError):
    """A component does not return what its base class says."""


def returned(owner: Any, method: str, value: Any, kind: Callable[..., T]) -> T:
    """Check the type of what a method of a component returns.

    Args:
        owner: the component, its class, or a function in place of it.
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
        given = "None; is a return missing?" if value is None else f"a {type(value).__name__}"
        raise violated(owner, method, f"must return a {expected.__name__} and returns {given}")
    found: T = value
    return found


def returned_tensor(
    owner: Any,
    method: str,
    value: Any,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    name: str = "",
) -> Tensor:
    """Check a tensor that a method of a component returns; see ``returned``.

    Args:
        owner: see ``returned``.
        method: see ``returned``.
        value: see ``returned``.
        shape: the shape that it must have.
        dtype: likewise.
        device: likewise.
        name: the field of the result that has the tensor; empty if the tensor is the result.

    Raises:
        ContractError: it is no tensor, or has another shape or dtype or is on another device.
    """
    found = returned(owner, method, value, Tensor)
    if (found.shape, found.dtype, found.device) != (shape, dtype, device):
        given = f"{tuple(found.shape)} of {found.dtype} on {found.device}"
        raise violated(owner, method, f"must return {name}{tuple(shape)} of {dtype} on {device} and returns {given}")
    return found


def violated(owner: Any, method: str, what: str) -> ContractError:
    """The error for a method that does not return what it should.

    Args:
        owner: see ``returned``.
        method: see ``returned``.
        what: what it must return, and what it returns.
    """
    named = owner if inspect.isroutine(owner) or isinstance(owner, type) else type(owner)
    called = named.__name__ if method == "__call__" else f"{named.__name__}.{method}"
    return ContractError(f"{called} ({origin(named)}) {what}")
