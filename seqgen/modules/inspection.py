"""Inspection of models: size, frozen parameters, and what the layers compute in a pass.

Letters: ``L`` layers, ``H`` heads, ``N`` rows, ``T`` positions of a pass, ``K`` positions attended to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.modules.attention import MultiStepAttention
from seqgen.modules.multihead_attention import MultiheadAttention


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


_STACKS = (("layers", "layer_norm"), ("convolutions", "fc2"))
"""Names of the layers, and of the module after the last of them, in transformers and in the convolutional model."""


@dataclass(frozen=True)
class StackInternals:
    """Tensors that the layers of an encoder or a decoder compute in one pass.

    Attributes:
        hidden_states: ``L + 1`` tensors ``(N, T, C)``: the input of each layer, and last what the encoder returns, or
            the features from which the decoder predicts.
        self_attention: for each layer with self-attention ``(N, H, T, K)`` weights.
        cross_attention: for each layer with encoder-decoder attention ``(N, H, T, S)`` weights.
    """

    hidden_states: list[Tensor] = field(default_factory=list)
    self_attention: list[Tensor] = field(default_factory=list)
    cross_attention: list[Tensor] = field(default_factory=list)

    def of_row(self, row: int, positions: slice, source: slice) -> StackInternals:
        """Some positions of one row, on the CPU.

        Args:
            row: number of the row.
            positions: the positions of the encoder or the decoder.
            source: the source positions that encoder-decoder attention is over.
        """
        return StackInternals(
            [hidden[row, positions].cpu() for hidden in self.hidden_states],
            [weights[row, :, positions, positions].cpu() for weights in self.self_attention],
            [weights[row, :, positions, source].cpu() for weights in self.cross_attention],
        )


@dataclass(frozen=True)
class Recording:
    """The passes of a model, in their order.

    Attributes:
        encoder: the passes of the encoder; none for a decoder-only model.
        decoder: the passes of the decoder; in decoding, one for each step.
    """

    encoder: list[StackInternals] = field(default_factory=list)
    decoder: list[StackInternals] = field(default_factory=list)


@dataclass(frozen=True)
class Internals:
    """Tensors that the layers of a model compute for one source and one target, without padding.

    Position ``t`` of the decoder predicts target token ``t``. In a decoder-only model the prompt precedes the target:
    with ``P`` prompt tokens, position ``P - 1 + t`` predicts token ``t``.

    Attributes:
        encoder: hidden states ``(S, C)``, weights ``(H, S, S)``; ``None`` if the encoder was not run.
        decoder: hidden states ``(T, C)``, weights ``(H, T, T)`` and ``(H, T, S)``.
    """

    encoder: StackInternals | None
    decoder: StackInternals


@contextmanager
def record_passes(model: EncoderDecoderModel) -> Iterator[Recording]:
    """Record each pass of a model's encoder and decoder in the ``with`` block.

    The recorded tensors are those that the model computes with, so that gradients flow through them. The values at
    padding are undefined. Layers that LayerDrop skips are missing. Layers whose activations are computed again in the
    backward pass (``checkpoint_activations``) are recorded twice.

    Args:
        model: a model whose encoder and decoder have ``layers`` and ``layer_norm``, or which is convolutional.

    Yields:
        The recording, to which each pass is added.

    Raises:
        ConfigError: the decoder has no such layers, or the model is already being recorded.
    """
    recording = Recording()
    if _layers_of(model.decoder) is None:
        raise ConfigError(
            f"the layers of {type(model.decoder).__name__} cannot be recorded; a decoder needs a ModuleList `layers`, "
            "whose modules take the hidden states as their first argument, and a module `layer_norm` after them"
        )
    with ExitStack() as stack:
        for part, passes in ((model.encoder, recording.encoder), (model.decoder, recording.decoder)):
            if (found := _layers_of(part)) is not None:
                stack.enter_context(_recording(part, *found, passes))
        yield recording


def _layers_of(part: nn.Module) -> tuple[list[nn.Module], nn.Module] | None:
    """The layers of an encoder or a decoder and the module after them; ``None`` if it has none."""
    for layers, last in _STACKS:
        if isinstance(found := getattr(part, layers, None), nn.ModuleList) and hasattr(part, last):
            return list(found), getattr(part, last)
    return None


@contextmanager
def _recording(
    part: nn.Module, layers: list[nn.Module], last: nn.Module, passes: list[StackInternals]
) -> Iterator[None]:
    """Append each pass of an encoder or a decoder to ``passes``."""
    reached = len(layers)  # the layer that runs; len(layers) between two passes

    def before(index: int) -> Callable[..., None]:
        def hook(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
            nonlocal reached
            if index <= reached:
                passes.append(StackInternals())
            reached = index
            passes[-1].hidden_states.append(arguments[0])

        return hook

    def after(module: nn.Module, arguments: Any, output: Tensor) -> None:
        nonlocal reached
        if reached < len(layers):  # else it is called for an early exit, after the pass
            passes[-1].hidden_states.append(output)
        reached = len(layers)

    def keep(name: str, weights: Tensor) -> None:
        getattr(passes[-1], name).append(weights)

    modules = [module for module in part.modules() if isinstance(module, MultiheadAttention | MultiStepAttention)]
    if any(attention.on_weights is not None for attention in modules):
        raise ConfigError("this model is already being recorded; end the recording before the next one begins")
    handles = [layer.register_forward_pre_hook(before(index)) for index, layer in enumerate(layers)]
    handles.append(last.register_forward_hook(after))
    try:
        for attention in modules:
            attention.on_weights = partial(keep, "cross_attention" if attention.encoder_decoder else "self_attention")
        yield
    finally:
        for handle in handles:
            handle.remove()
        for attention in modules:
            attention.on_weights = None
