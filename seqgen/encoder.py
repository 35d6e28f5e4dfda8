"""The base class of encoders."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from seqgen.structures import EncoderOut


class Encoder(nn.Module):
    """Reads a source sentence.

    A subclass implements ``forward`` and ``max_positions``. Every tensor in its ``EncoderOut`` must have the row
    dimension first; then the inherited ``reorder_encoder_out`` is correct.
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
        """Pick rows of an encoder's output.

        Args:
            encoder_out: what ``forward`` returned; it is not changed.
            new_order: ``(rows,)`` int64 indices of rows; a row may occur several times or not at all.

        Returns:
            A new value with the rows asked for.
        """
        return encoder_out.index_select(new_order)

    def merge_encoder_outs(self, encoder_out: EncoderOut, other: EncoderOut) -> EncoderOut:
        """Put the rows of another output behind those of this one, the shorter sources padded on the right.

        Args:
            encoder_out: what ``forward`` returned for some sentences; it is not changed.
            other: what it returned for others; likewise.

        Returns:
            A new value with the rows of both.
        """
        return encoder_out.merge(other)

    def max_positions(self) -> int:
        """The longest source that can be read, in tokens with end-of-sentence."""
        raise NotImplementedError

    def upgrade_state_dict(self, state_dict: dict[str, Any], prefix: str = "") -> None:
        """Convert weights that an older version saved, in place, before they are loaded.

        Args:
            state_dict: the whole model's weights by name.
            prefix: beginning of the names that belong to this module, such as ``"encoder."``.
        """
