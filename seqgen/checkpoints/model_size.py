"""Comparing a model's size with its checkpoint's before any memory is taken.

A damaged configuration can ask for a billion layers, while the size of the checkpoint's weights is bounded by the size
of its file. So the model is first built without memory, on PyTorch's ``meta`` device. It is built with memory only if
its sizes match those of the checkpoint.
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
    """Check that a model is as large as its weights; one that needs memory to be built is left unchecked.

    Args:
        build: builds the model.
        weights: the weights by name; only their shapes are looked at, so that they may be on the ``meta`` device.
        where: the checkpoint, for messages.
        without_memory: whether the model is known to build on the ``meta`` device, so that a failure there is an error.

    Raises:
        CheckpointError: it is larger, or has other weights.
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
    """Build a model with memory.

    Args:
        build: builds the model.
        where: the checkpoint, for messages.

    Raises:
        CheckpointError: its sizes are none that a model can have, or there is not enough memory.
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
    """Stop building a model with more parameters than this; repeated and replaced parameters count as well."""
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
