"""Compares a model's weights with those of its checkpoint before memory is allocated.

A damaged configuration can ask for a billion layers, whereas the weights of a checkpoint are no larger than its file.
So the model is first built on PyTorch's ``meta`` device, which allocates no memory. It is built on a real device only
if its weights match those of the checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from seqgen.checkpoints.run_checkpoints import fit
from seqgen.errors import CheckpointError, UserError

MAX_BUFFERS = 1 << 32
"""Maximum bytes of buffers that a model computes when it is built and does not save, such as sinusoidal positions."""


def check_size(
    build: Callable[[], nn.Module], weights: Mapping[str, Tensor], where: str, *, without_memory: bool = False
) -> None:
    """Check that a model has the weights of its checkpoint, by name and shape.

    A model that cannot be built on the ``meta`` device is not checked.

    Args:
        build: builds the model.
        weights: the checkpoint's weights by name; only their shapes are read, so they may be on the ``meta`` device.
        where: the checkpoint, for messages.
        without_memory: whether the model is known to build on the ``meta`` device; if so, a failure there is an error.

    Raises:
        CheckpointError: the model has other weights, or too large buffers.
    """
    try:
        with torch.device("meta"), _at_most(4 * len(weights) + 1000, where):
            model = build()
            upgraded = dict(weights)
            upgrade = getattr(model, "upgrade_state_dict", None)
            if upgrade is not None:
                upgrade(upgraded)
    except UserError:
        raise
    except (RuntimeError, TypeError, ValueError, NotImplementedError, OverflowError) as error:
        if without_memory:
            raise _impossible(error, where) from error
        return
    fit(model, upgraded, where)
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if buffers > MAX_BUFFERS:
        raise CheckpointError(
            f"{where}: the model would need {buffers >> 30} GiB for buffers, more than {MAX_BUFFERS >> 30} GiB; its "
            "configuration is damaged, perhaps its maximum source or target length"
        )


def build_real(build: Callable[[], Any], where: str) -> Any:
    """Build a model on a real device.

    Args:
        build: builds the model.
        where: the checkpoint, for messages.

    Returns:
        The model.

    Raises:
        CheckpointError: the configured sizes are impossible, or there is not enough memory.
    """
    try:
        return build()
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise _impossible(error, where) from error


def _impossible(error: BaseException, where: str) -> CheckpointError:
    reason = str(error).strip().partition("\n")[0][:200]
    return CheckpointError(f"{where}: a model of these sizes cannot be built ({reason})")


@contextlib.contextmanager
def _at_most(limit: int, where: str) -> Iterator[None]:
    """Fail as soon as more than ``limit`` parameters are registered; replaced and shared ones count each time."""
    count = 0

    def add(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > limit:
            raise CheckpointError(f"{where}: the model has more weights than the checkpoint; was config.yaml edited?")

    hook = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()
