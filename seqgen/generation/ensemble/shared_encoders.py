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

    The encoder is not run if the source has its output already.

    The output must not be changed in place: several members may read it.

    Args:
        encoder: the encoder of a member.
        source: ``(sentences, S)``.
    """
    if source.encoder_out is not None:
        return source.encoder_out
    batch = _BATCH.get()
    first = None if batch is None else batch.first.get(encoder)
    if batch is None or first is None:
        return _run(encoder, source)
    for other, read, output in batch.encoded:
        if other is first and _equal_sources(read, source):
            return output
    output = _run(first, source)
    batch.encoded.append((first, source, output))
    return output


class SharedEncoders:
    """The encoders of an ensemble, and which of them are identical.

    Two encoders are identical if their modules have the same classes, attributes and weights. An attribute of which
    this is unknown, such as a function that is defined for each object, counts as different. Weights are compared once,
    and again after they have changed. An encoder with a module in training mode, such as dropout that stays active, may
    be random and is not shared.

    Args:
        encoders: the encoder of each member.
    """

    def __init__(self, encoders: Sequence[Encoder]):
        self.encoders = list(dict.fromkeys(encoders))
        self._same_weights: dict[tuple[Encoder, Encoder], tuple[Stamp, bool]] = {}

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """In the ``with`` block, ``encode`` runs identical encoders once for equal sources."""
        token = _BATCH.set(_Batch(self.first_identical(), []))
        try:
            yield
        finally:
            _BATCH.reset(token)

    def first_identical(self) -> dict[Encoder, Encoder]:
        """For each encoder the first one that is identical to it, often itself; not for encoders in training mode."""
        found: dict[Encoder, Encoder] = {}
        for encoder in self.encoders:
            if not any(module.training for module in encoder.modules()):
                firsts = (first for first in dict.fromkeys(found.values()) if self._identical(first, encoder))
                found[encoder] = next(firsts, encoder)
        return found

    def _identical(self, one: Encoder, other: Encoder) -> bool:
        if not _alike(one, other):
            return False
        mine, theirs = _tensors(one), _tensors(other)
        both = [*mine.values(), *theirs.values()]
        stamp, same = self._same_weights.get((one, other), (None, False))
        if stamp is None or not stamp.holds(both):
            same = mine.keys() == theirs.keys() and all(_equal(mine[name], theirs[name]) for name in mine)
            self._same_weights[one, other] = Stamp(both), same
        return same


@dataclass
class _Batch:
    """The first of the encoders that are identical to each one, and what was encoded: encoder, source and output."""

    first: dict[Encoder, Encoder]
    encoded: list[tuple[Encoder, Source, EncoderOut]]


_BATCH: ContextVar[_Batch | None] = ContextVar("batch", default=None)


def _run(encoder: Encoder, source: Source) -> EncoderOut:
    output: EncoderOut = encoder(source.src_tokens, source.src_lengths)
    return output


def _equal_sources(one: Source, other: Source) -> bool:
    return _equal(one.src_tokens, other.src_tokens) and _equal(one.src_lengths, other.src_lengths)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules, with all modules in them, differ at most in their weights."""
    mine, theirs = dict(one.named_modules()), dict(other.named_modules())
    return mine.keys() == theirs.keys() and all(
        type_before_parametrizations(module) is type_before_parametrizations(theirs[name])
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
