"""Bit-exact decoding: batches are filled up to widths at which their numbers do not depend on the batch.

Where a sum over source positions begins and ends, in the vectors of a processor and in the tiles of a product, depends
on the width of the batch. Widths are therefore multiples of a tile. ``functions`` has the products and functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from seqgen.addons.bit_exact.functions import INNER, TILE, BitExact, rounded_up
from seqgen.extend import (
    Batch,
    ConfigError,
    DecodingSetup,
    EncoderDecoderModel,
    Hypothesis,
    Resources,
    SequenceScorer,
    Source,
)
from seqgen.system.switches import INPUT_CHOICES, KERNEL_CHOICE, apply_switches

_FIXED_KERNELS = {INPUT_CHOICES: False, KERNEL_CHOICE: False}


@contextmanager
def exactly() -> Iterator[None]:
    """In the ``with`` block, models compute each row with the same bits in every batch."""
    with apply_switches(_FIXED_KERNELS), BitExact():
        yield


class TilePadding:
    """Fills up the batches of bit-exact decoding; a ``BatchStage``.

    Args:
        models: the models that read the batches.
        pad: id of padding.
    """

    def __init__(self, models: Sequence[EncoderDecoderModel], pad: int):
        self.models, self.pad = models, pad

    def before(self, sample: Batch) -> Batch:
        """Fill up the sources and targets to widths at which their numbers do not depend on the other sentences.

        Raises:
            ConfigError: an encoder's output is given in place of a source.
        """
        return replace(
            sample,
            source=_padded(sample.source, self.models[0], self.pad),
            member_sources=sample.member_sources
            and [_padded(*pair, self.pad) for pair in zip(sample.member_sources, self.models, strict=True)],
            target=_filled(sample.target, self.pad),
            prev_output_tokens=_filled(sample.prev_output_tokens, self.pad),
        )

    def after(self, one: Hypothesis, sample: Batch) -> Hypothesis:
        """Cut the attention weights of a hypothesis to the width of ``sample``, the batch that was not filled up."""
        if one.attention is None:
            return one
        missing = one.attention.size(1) - sample.source.src_tokens.size(1)
        kept = slice(missing, None) if self.models[0].left_pad_source else slice(0, one.attention.size(1) - missing)
        attention = one.attention[:, kept]
        return replace(one, attention=attention, alignment=attention.argmax(-1))


def exact_scorer(scorer: SequenceScorer, bit_exact: bool) -> SequenceScorer:
    """The scorer, which now computes the scores of a target with the same bits in every batch.

    Args:
        scorer: the scorer.
        bit_exact: the value of the key, which is true.
    """
    scorer.stages = [*scorer.stages, TilePadding(scorer.ensemble.models, scorer.pad)]
    scorer.around = [*scorer.around, exactly]
    return scorer


def exact_setup(setup: DecodingSetup, bit_exact: bool, resources: Resources) -> DecodingSetup:
    """A setup whose sessions compute the numbers of a sentence with the same bits in every batch.

    Keys stay in the order of the tokens of their row, and no sentence joins a running batch. A strategy with another
    loop computes exactly in all of the loop.

    Args:
        setup: the setup.
        bit_exact: the value of the key, which is true.
        resources: are not used.
    """
    own_loop = setup.search.session_class is not None
    return replace(
        setup,
        fast=replace(setup.fast, beam_indirection="off", continuous_batching=False),
        stages=[*setup.stages, TilePadding(setup.ensemble.models, setup.pad)],
        around=[*setup.around, lambda _: apply_switches(_FIXED_KERNELS), *([lambda _: BitExact()] if own_loop else [])],
        around_step=[*setup.around_step, *([] if own_loop else [lambda session, phase: BitExact()])],
    )


def _filled(target: Tensor | None, pad: int) -> Tensor | None:
    if target is None:
        return None
    return F.pad(target, (0, rounded_up(target.size(1), TILE) - target.size(1)), value=pad)


def _padded(source: Source, model: EncoderDecoderModel, pad: int) -> Source:
    if source.encoder_out is not None:
        raise ConfigError("generation.bit_exact=true needs sources, not the encoder's output; remove the key")
    width = source.src_tokens.size(1)
    missing = _width(width, model) - width
    sides = (missing, 0) if model.left_pad_source else (0, missing)
    return replace(source, src_tokens=F.pad(source.src_tokens, sides, value=pad))


def _width(width: int, model: EncoderDecoderModel) -> int:
    """The width to which a source is filled up.

    The prompt of a language model is followed by the output, so that the tiles of both must begin at the same places
    for every width. A source that is padded on the left must end where a tile ends.
    """
    if model.continues_source or (model.left_pad_source and width > INNER):
        return rounded_up(width, INNER)
    longest = model.max_positions()[0]
    return max(width, min(rounded_up(width, TILE), longest))
