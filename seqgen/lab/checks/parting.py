"""Where two passes of a model part: the first module with equal inputs and different outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqgen.incremental_state import StatefulModule
from seqgen.structures import tensors_in

Cut = Callable[[Tensor], "Tensor | None"]
"""Cuts a tensor to the part that is compared; ``None`` if it has no such part."""


@dataclass
class Event:
    """A module is entered or left.

    Attributes:
        name: name of the module.
        module: the module.
        left: whether it is left.
        tensors: its inputs when it is entered, its outputs when it is left.
    """

    name: str
    module: nn.Module
    left: bool
    tensors: list[Tensor]


@dataclass(frozen=True)
class Parting:
    """Where two passes part.

    Attributes:
        name: the first module that has equal inputs and different outputs.
        from_positions: whether the results differ before any layer with a state, or in a module whose input has no
            features: then positions differ.
    """

    name: str
    from_positions: bool


def record(model: nn.Module, call: Callable[[], Any]) -> list[Event]:
    """Run a pass and record the inputs and outputs of all modules.

    Args:
        model: the module whose submodules are recorded.
        call: runs the pass.
    """
    events: list[Event] = []
    handles = []
    for name, module in model.named_modules():

        def entered(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            events.append(Event(name, module, False, _copies((args, kwargs))))

        def left(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            events.append(Event(name, module, True, _copies(output)))

        handles.append(module.register_forward_pre_hook(entered, with_kwargs=True))
        handles.append(module.register_forward_hook(left))
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return events


def _copies(value: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors_in(value)]


def first_parting(one: list[Event], two: list[Event], cut_one: Cut, cut_two: Cut) -> Parting | None:
    """Find where two passes part.

    Args:
        one: the events of one pass.
        two: those of the other.
        cut_one: cuts the tensors of the first pass to the part that the passes share.
        cut_two: cuts those of the other.

    Returns:
        Where they part; ``None`` if all tensors that can be compared are equal, or if the modules run in another
        order.
    """
    # A step does not run all modules: encoder-decoder attention projects the keys of the source only once.
    names = {event.name for event in one} & {event.name for event in two}
    one, two = ([event for event in events if event.name in names] for events in (one, two))
    if [(event.name, event.left) for event in one] != [(event.name, event.left) for event in two]:
        return None
    from_positions: bool | None = None
    stateful = False
    inputs: list[tuple[bool, bool]] = []
    for ours, theirs in zip(one, two, strict=True):
        differs = _differ(ours.tensors, theirs.tensors, cut_one, cut_two)
        if not ours.left:
            has_features = any(tensor.is_floating_point() for tensor in ours.tensors)
            inputs.append((differs, has_features))
            stateful |= isinstance(ours.module, StatefulModule) and ours.name != ""
            if differs and from_positions is None:
                from_positions = not stateful
            continue
        input_differs, has_features = inputs.pop()
        if differs and from_positions is None:
            from_positions = not has_features and ours.name != ""
        if differs and not input_differs:
            return Parting(ours.name, bool(from_positions))
    return None


def _differ(one: list[Tensor], two: list[Tensor], cut_one: Cut, cut_two: Cut) -> bool:
    if len(one) != len(two):
        return False
    for ours, theirs in zip(map(cut_one, one), map(cut_two, two), strict=True):
        if ours is None or theirs is None or ours.shape != theirs.shape or not ours.is_floating_point():
            continue
        if not torch.allclose(ours, theirs, rtol=0, atol=1e-9, equal_nan=True):
            return True
    return False
