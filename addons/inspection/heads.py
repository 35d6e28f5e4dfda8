"""Attention heads whose outputs are multiplied by factors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from seqgen.extend import ConfigError, EncoderDecoderModel, MultiheadAttention


@contextmanager
def masked_heads(
    model: EncoderDecoderModel,
    *,
    encoder: Tensor | None = None,
    decoder: Tensor | None = None,
    cross: Tensor | None = None,
) -> Iterator[None]:
    """Multiply the output of each attention head by a factor in the ``with`` block, in forward passes and in decoding.

    A factor of 0 removes a head (Michel et al. 2019, "Are sixteen heads really better than one?", section 2.2). Factors
    may require gradients.

    Args:
        model: the model.
        encoder: ``(layers, heads)``, or ``(heads,)`` for all layers: the factors of self-attention in the encoder.
        decoder: those of self-attention in the decoder.
        cross: those of encoder-decoder attention.

    Raises:
        ConfigError: the model has no such attention, or a mask has another shape.
    """
    with ExitStack() as stack:
        for name, mask in (("encoder", encoder), ("decoder", decoder), ("cross", cross)):
            if mask is None:
                continue
            modules = _attention_of(model, name)
            layers, heads = len(modules), modules[0].num_heads
            if tuple(mask.shape) not in ((heads,), (layers, heads)):
                raise ConfigError(
                    f"the mask {name} has the shape {tuple(mask.shape)}; give ({layers}, {heads}), the layers and "
                    f"heads of the model, or ({heads},) for all layers"
                )
            for attention, factors in zip(modules, mask.expand(layers, heads), strict=True):
                handle = attention.out_proj.register_forward_pre_hook(_scaling(attention.head_dim, factors))
                stack.callback(handle.remove)
        yield


def _attention_of(model: EncoderDecoderModel, name: str) -> list[MultiheadAttention]:
    """The attention modules that ``encoder``, ``decoder`` or ``cross`` names, one for each layer."""
    modules = (model.encoder if name == "encoder" else model.decoder).modules()
    attention = [module for module in modules if isinstance(module, MultiheadAttention)]
    found = [module for module in attention if module.encoder_decoder == (name == "cross")]
    if not found:
        where = {"encoder": "self-attention in the encoder", "decoder": "self-attention in the decoder"}
        raise ConfigError(f"{type(model).__name__} has no heads of {where.get(name, 'encoder-decoder attention')}")
    return found


def _scaling(head_dim: int, factors: Tensor) -> Any:
    """A hook that multiplies the output of each head, the ``head_dim`` columns of its number, by its factor."""

    def hook(projection: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (heads,) = arguments
        return (heads * factors.to(heads).repeat_interleave(head_dim),)

    return hook
