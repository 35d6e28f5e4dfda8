"""The base classes of decoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seqgen.incremental_state import (
    IncrementalState,
    StateDict,
    StatefulModule,
    beam_size_of,
    rows_of_parents,
    rows_of_sentences,
)
from seqgen.structures import DecoderOut, EncoderOut


class Decoder(nn.Module):
    """Predicts the next target token at each position.

    ``forward`` is ``extract_features`` followed by ``output_layer``; a subclass implements these two and
    ``max_positions``, or ``forward`` as a whole.
    """

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, *, need_attention: bool = False
    ) -> DecoderOut:
        """Score the next token at each position.

        Args:
            prev_output_tokens: ``(N, T)`` int64 target tokens so far, after the model's start symbol.
            encoder_out: what the encoder returned, one row for each row of ``prev_output_tokens``.
            need_attention: whether the attention weights are wanted.

        Returns:
            Logits ``(N, T, V)``, and attention ``(N, T, S)`` where wanted and there is such a thing.
        """
        features, attention = self.extract_features(prev_output_tokens, encoder_out, need_attention=need_attention)
        return DecoderOut(self.output_layer(features), attention)

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, *, need_attention: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the last hidden features.

        Args:
            prev_output_tokens: ``(N, T)`` int64.
            encoder_out: what the encoder returned.
            need_attention: whether the attention weights are wanted.

        Returns:
            Features ``(N, T, C)`` and attention ``(N, T, S)`` or ``None``.
        """
        raise NotImplementedError

    def output_layer(self, features: Tensor) -> Tensor:
        """Project features to the vocabulary.

        Args:
            features: ``(..., C)``.

        Returns:
            Logits ``(..., V)``.
        """
        raise NotImplementedError

    def get_normalized_probs(self, logits: Tensor, log_probs: bool = True) -> Tensor:
        """Normalize logits over the vocabulary, in float32 or wider.

        Args:
            logits: ``(..., V)``.
            log_probs: whether log-probabilities (nats) are wanted rather than probabilities.

        Returns:
            ``(..., V)``, float64 for float64 logits and float32 otherwise.
        """
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return logits.log_softmax(-1, dtype=dtype) if log_probs else logits.softmax(-1, dtype=dtype)

    def max_positions(self) -> int:
        """The longest target that can be written, in tokens with end-of-sentence."""
        raise NotImplementedError

    def upgrade_state_dict(self, state_dict: dict[str, Any], prefix: str = "") -> None:
        """Bring weights saved by an older version up to date, in place, before they are loaded.

        Args:
            state_dict: the whole model's weights by name.
            prefix: beginning of the names that belong to this module, such as ``"decoder."``.
        """


class IncrementalDecoder(StatefulModule, Decoder):
    """A decoder that can go on from where it stopped.

    Without a state ``forward`` is the parallel, teacher-forced pass. With one it computes only the positions that the
    state has not seen yet, and gives for them exactly what the parallel pass gives. A subclass asks ``positions_seen``
    where to begin and calls ``advance`` when it is done::

        start = self.positions_seen(incremental_state)
        new_tokens = prev_output_tokens[:, start:]
        ...
        self.advance(incremental_state, new_tokens.size(1))

    The verbs that move rows work on every slot in the state, whichever module below this one owns it.
    """

    shares_encoder_output: bool = False
    """Whether ``encoder_out`` may have one row for each sentence while the decoder's rows are sentences times beam."""

    reads_history: bool = True
    """Whether columns of ``prev_output_tokens`` that the state has seen are read again. If not, the generator does not
    put them together, and they may hold anything."""

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
    ) -> DecoderOut:
        """Score the next token at each position that the state has not seen.

        Args:
            prev_output_tokens: ``(N, T)`` int64 all target tokens so far, after the model's start symbol. With a state,
                the columns that it has seen are not read again.
            encoder_out: what the encoder returned.
            incremental_state: what was seen so far, updated in place; ``None`` for the parallel pass.
            need_attention: whether the attention weights are wanted.

        Returns:
            Logits ``(N, new positions, V)``, and attention ``(N, new positions, S)`` where wanted.
        """
        features, attention = self.extract_features(prev_output_tokens, encoder_out, incremental_state, need_attention)
        return DecoderOut(self.output_layer(features), attention)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the last hidden features of the positions that the state has not seen; see ``forward``."""
        raise NotImplementedError

    def new_incremental_state(
        self, num_sentences: int, beam_size: int = 1, device: torch.device | str | None = None
    ) -> IncrementalState:
        """Make an empty state for ``num_sentences * beam_size`` rows.

        Args:
            num_sentences: sentences in the batch.
            beam_size: rows of each sentence.
            device: where the state's own tensors live.
        """
        return IncrementalState(num_sentences, beam_size, device)

    def positions_seen(self, incremental_state: StateDict | None) -> int:
        """How many positions the state has seen; 0 without a state."""
        slots = self.get_slots(incremental_state)
        return 0 if slots is None else int(slots.get("positions_seen", 0))

    def advance(self, incremental_state: StateDict | None, new_positions: int) -> None:
        """Note that ``new_positions`` more positions have been seen; does nothing without a state."""
        self.set_slots(incremental_state, {"positions_seen": self.positions_seen(incremental_state) + new_positions})

    def reorder_incremental_state(self, incremental_state: StateDict, new_order: Tensor) -> None:
        """Put the rows of a state into a new order, in place.

        Args:
            incremental_state: the state of this decoder.
            new_order: ``(rows,)`` int64, the old row that each new row continues: any order, any number of rows,
                repeats and drops allowed.
        """
        for key, slots in list(incremental_state.items()):
            incremental_state[key] = _owner(key).reorder_slots(slots, new_order)

    def reorder_beams(self, incremental_state: StateDict, parents: Tensor) -> None:
        """Put rows into a new order that stays within each sentence, in place.

        Args:
            incremental_state: the state of this decoder.
            parents: ``(sentences, beam)`` int64, the beam of the same sentence that each new row continues.
        """
        if type(self).reorder_incremental_state is not IncrementalDecoder.reorder_incremental_state:
            return self.reorder_incremental_state(incremental_state, rows_of_parents(parents))
        for key, slots in list(incremental_state.items()):
            incremental_state[key] = _owner(key).reorder_slots_within_beams(slots, parents)
        return None

    def select_sentences(self, incremental_state: StateDict, keep: Tensor) -> None:
        """Keep the rows of some sentences and forget the others, in place.

        Args:
            incremental_state: the state of this decoder.
            keep: ``(kept,)`` int64 indices of the sentences to keep.
        """
        beam_size = beam_size_of(incremental_state)
        if isinstance(incremental_state, IncrementalState):
            incremental_state.starts = incremental_state.starts.index_select(0, keep)
        if type(self).reorder_incremental_state is not IncrementalDecoder.reorder_incremental_state:
            return self.reorder_incremental_state(incremental_state, rows_of_sentences(keep, beam_size))
        for key, slots in list(incremental_state.items()):
            incremental_state[key] = _owner(key).select_slots(slots, keep, beam_size)
        return None

    def set_beam_size(self, beam_size: int) -> None:
        """A hint, before a search, of how many rows each sentence will have; the built-in models need none."""


def _owner(key: Any) -> StatefulModule:
    owner = key.owner
    if owner is None:
        raise RuntimeError("a decoding state holds slots of a module that no longer exists; begin with a new state")
    module: StatefulModule = owner
    return module
