"""The base class of encoders."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from seqgen.core.contract import Hooked
from seqgen.core.errors import ConfigError, listing
from seqgen.core.structures import EncoderOut, Source


def inputs_of(encoder: nn.Module, source: Source) -> dict[str, Tensor]:
    """The further arguments of an encoder: those of a source's ``inputs`` that it declares.

    Args:
        encoder: the encoder.
        source: the source.

    Raises:
        ConfigError: the source lacks one.
    """
    names: tuple[str, ...] = getattr(encoder, "inputs", ())
    if lacking := [name for name in names if name not in source.inputs]:
        raise ConfigError(
            f"{type(encoder).__name__} reads {listing(lacking)}, which are missing: see task.columns; inputs have them "
            "in files beside it or in lines of JSON, that of a job only in these, with job.format=text"
        )
    return {name: source.inputs[name] for name in names}


class Encoder(nn.Module, Hooked):
    """Encodes source sentences.

    A subclass implements ``forward``. The first dimension of every tensor in its ``EncoderOut``
    must be the row; then the inherited ``reorder_encoder_out`` is correct.
    """

    inputs: ClassVar[tuple[str, ...]] = ()
    """Names of the columns of examples that ``forward`` has as further arguments, ``(N, ...)``; see ``collate``."""

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> EncoderOut:
        """Encode a batch of sentences.

        Args:
            src_tokens: ``(N, S)`` int64 ids, padded.
            src_lengths: ``(N,)`` int64 lengths without padding.

        Returns:
            The features that the decoder attends to.
        """
        raise NotImplementedError

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Select rows of an encoder's output.

        Args:
            encoder_out: the output of ``forward``; it is not changed.
            new_order: ``(rows,)`` int64 indices of rows; a row may occur several times or not at all.

        Returns:
            A new value with these rows.
        """
        return encoder_out.index_select(new_order)

    def merge_encoder_outs(self, encoder_out: EncoderOut, other: EncoderOut) -> EncoderOut:
        """Append the rows of another output; shorter sources are padded on the right.

        Args:
            encoder_out: the output of ``forward`` for some sentences; it is not changed.
            other: its output for further sentences; it is not changed.

        Returns:
            A new value with the rows of both.
        """
        return encoder_out.merge(other)

    def max_positions(self) -> int:
        """The length of the longest source, in tokens with end-of-sentence; 1,024 unless a subclass says otherwise."""
        return 1024
