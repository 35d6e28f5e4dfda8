"""What a model is made of: its size, which parts learn, and where its numbers overflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from seqgen.errors import ConfigError, nearest
from seqgen.structures import Batch, map_tensors


def num_parameters(module: nn.Module, trainable_only: bool = False) -> int:
    """How many numbers a module's parameters hold; those that are one and the same count once.

    Args:
        module: the module.
        trainable_only: whether to leave out frozen ones.
    """
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable_only)


def memory_footprint(module: nn.Module) -> int:
    """Bytes that a module's parameters and buffers take; gradients and optimizer states come on top of that."""
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def freeze(module: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Keep some parameters from learning.

    Args:
        module: the module.
        patterns: names of parameters, in which ``*`` stands for anything, such as ``"encoder.*"`` or
            ``"*embed_tokens.weight"``. One that is shared is frozen by any of its names.

    Returns:
        The names of the parameters that were frozen.

    Raises:
        ConfigError: a pattern fits no parameter.
    """
    names = dict(module.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"there is no parameter {pattern!r} to freeze{nearest(pattern, names)}")
    frozen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    for name in frozen:
        names[name].requires_grad_(False)
    return frozen


@torch.no_grad()
def first_overflow(model: nn.Module, batch: Batch) -> str | None:
    """Find the layer at which a model's numbers first get infinite or NaN, as they may in float16.

    Args:
        model: an encoder-decoder model.
        batch: a batch with targets.

    Returns:
        The name of the first module whose output is not finite, such as ``"encoder.layers.3.feed_forward.wo"``;
        ``None`` where everything is finite.

    Raises:
        ValueError: the batch has no targets.
    """
    if batch.prev_output_tokens is None:
        raise ValueError("the batch has no targets, without which the decoder does not run")
    overflowed: list[str] = []
    with _watching(model, overflowed):
        model(batch.source.src_tokens, batch.source.src_lengths, batch.prev_output_tokens)
    return overflowed[0] if overflowed else None


@contextmanager
def _watching(model: nn.Module, overflowed: list[str]) -> Iterator[None]:
    """Note the names of modules whose outputs are not finite; an inner one is done before those that it is part of."""

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            def check(tensor: Tensor) -> Tensor:
                if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                    overflowed.append(name)
                return tensor

            map_tensors(output, check)

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
