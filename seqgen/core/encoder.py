"""The base class of encoders."""

from __future__ import annotations

from torch import Tensor, nn

from seqgen.core.contract import Hooked
from seqgen.core.structures import EncoderOut


class Encoder(nn.Module, Hooked):
    """Encodes source sentences.

    A subclass implements ``forward``. The first dimension of every tensor in its ``EncoderOut``
    must be the row; then the inherited ``reorder_encoder_out`` is correct.
    """

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
