"""Inspection of models: size, frozen parameters, overflow."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seqgen.errors import ConfigError, nearest
from seqgen.structures import Batch, map_tensors


def num_parameters(module: nn.Module, trainable_only: bool = False) -> int:
    """Count the parameters of a module; tied parameters count once.

    Args:
        module: the module.
        trainable_only: whether to count only parameters that are not frozen.

    Returns:
        The number of values in all parameters.
    """
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable_only)


def memory_footprint(module: nn.Module) -> int:
    """Bytes of a module's parameters and buffers, without gradients and optimizer states."""
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def freeze(module: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Freeze some parameters, so that training does not change them.

    Args:
        module: the module.
        patterns: names of parameters, in which ``*`` matches anything, such as ``"encoder.*"`` or
            ``"*embed_tokens.weight"``. A tied parameter is frozen if any of its names matches.

    Returns:
        The names of the frozen parameters.

    Raises:
        ConfigError: a pattern matches no parameter.
    """
    names = dict(module.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            known = [*names, *(f"{name}.*" for name, _ in module.named_modules() if name)]
            raise ConfigError(f"there is no parameter {pattern!r} to freeze{nearest(pattern, known)}")
    frozen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    for name in frozen:
        names[name].requires_grad_(False)
    return frozen


@torch.no_grad()
def first_overflow(model: nn.Module, batch: Batch) -> str | None:
    """Find the first layer whose output is infinite or NaN, as can happen in float16.

    Args:
        model: an encoder-decoder model.
        batch: a batch with targets.

    Returns:
        The name of the first module whose output is not finite, such as ``"encoder.layers.3.feed_forward.wo"``;
        ``None`` if all outputs are finite.

    Raises:
        ValueError: the batch has no targets.
    """
    if batch.prev_output_tokens is None:
        raise ValueError("the batch has no targets, which the decoder needs")
    overflowed: list[str] = []

    def watch(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        def check(tensor: Tensor) -> Tensor:
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                overflowed.append(name)  # inner modules come first
            return tensor

        map_tensors(output, check)

    handles = [module.register_forward_hook(partial(watch, name)) for name, module in model.named_modules() if name]
    try:
        model(batch.source.src_tokens, batch.source.src_lengths, batch.prev_output_tokens)
    finally:
        for handle in handles:
            handle.remove()
    return overflowed[0] if overflowed else None
