"""Members with identical encoders and equal sources share one encoder output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from seqgen.encoder import Encoder
from seqgen.incremental_state import StateKey
from seqgen.modules.cached_weight import Stamp
from seqgen.structures import EncoderOut, Source

_NOT_COMPARED = {
    *("_parameters", "_buffers", "_modules"),  # compared separately
    "_kept",  # what ``CachedWeight`` computes from its weight
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
}


def encode(encoder: Encoder, source: Source) -> EncoderOut:
    """Run an encoder, or return its output for an equal source if ``SharedEncoders.sharing`` is active.

    The output must not be changed in place: several members may read it.

    Args:
        encoder: the encoder of a member.
        source: ``(sentences, S)``.
    """
    batch = _BATCH.get()
    if batch is None:
        return _run(encoder, source)
    encoder = batch.representatives.get(encoder, encoder)
    for other, read, output in batch.encoded:
        if (
            other is encoder
            and _equal(read.src_tokens, source.src_tokens)
            and _equal(read.src_lengths, source.src_lengths)
        ):
            return output
    output = _run(encoder, source)
    batch.encoded.append((encoder, source, output))
    return output


class SharedEncoders:
    """The encoders of an ensemble, and which of them are identical.

    Two encoders are identical if their modules have the same classes, attributes and weights. An attribute of which
    this is unknown, such as a function that is defined for each object, counts as different. Weights are compared once,
    and again after they have changed.

    Args:
        encoders: the encoder of each member.
    """

    def __init__(self, encoders: Sequence[Encoder]):
        self.encoders = list(dict.fromkeys(encoders))
        self._same_weights: dict[tuple[Encoder, Encoder], tuple[Stamp, bool]] = {}

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """In the ``with`` block, ``encode`` runs identical encoders once for equal sources."""
        token = _BATCH.set(_Batch(self.representatives(), []))
        try:
            yield
        finally:
            _BATCH.reset(token)

    def representatives(self) -> dict[Encoder, Encoder]:
        """For each encoder the first one that is identical to it, which may be itself."""
        found: dict[Encoder, Encoder] = {}
        for encoder in self.encoders:
            firsts = (first for first in dict.fromkeys(found.values()) if self._identical(first, encoder))
            found[encoder] = next(firsts, encoder)
        return found

    def _identical(self, one: Encoder, other: Encoder) -> bool:
        if not _alike(one, other):
            return False
        mine, theirs = _tensors(one), _tensors(other)
        both = [*mine.values(), *theirs.values()]
        stamp, same = self._same_weights.get((one, other), (None, False))
        if stamp is None or not stamp.holds(both) or (same and not stamp.looks_alike()):
            same = mine.keys() == theirs.keys() and all(_equal(mine[name], theirs[name]) for name in mine)
            self._same_weights[one, other] = Stamp(both), same
        return same


@dataclass
class _Batch:
    """The encoder outputs of a batch: the encoder, its source and its output."""

    representatives: dict[Encoder, Encoder]
    encoded: list[tuple[Encoder, Source, EncoderOut]]


_BATCH: ContextVar[_Batch | None] = ContextVar("batch", default=None)


def _run(encoder: Encoder, source: Source) -> EncoderOut:
    output: EncoderOut = encoder(source.src_tokens, source.src_lengths)
    return output


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules, with all modules in them, differ at most in their weights, and none is in training mode."""
    mine, theirs = dict(one.named_modules()), dict(other.named_modules())
    return mine.keys() == theirs.keys() and all(
        type_before_parametrizations(module) is type_before_parametrizations(theirs[name])
        and not module.training
        and _same_attributes(_attributes(module), _attributes(theirs[name]))
        for name, module in mine.items()
    )


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if name not in _NOT_COMPARED and not isinstance(value, StateKey)
    }


def _same_attributes(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return mine.keys() == theirs.keys() and all(_equal(mine[name], theirs[name]) for name in mine)


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are equal; false if they cannot be compared."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        kinds = [(tensor.dtype, tensor.device, tensor.shape, tensor.stride()) for tensor in (one, other)]
        return kinds[0] == kinds[1] and (one.data_ptr() == other.data_ptr() or torch.equal(one, other))
    try:
        return bool(one == other)
    except (RuntimeError, TypeError, ValueError):  # such as lists of tensors
        return False
