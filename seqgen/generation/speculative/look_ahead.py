"""A member that reads several drafted tokens in one pass, and rolls back those that are rejected."""

from __future__ import annotations

import copy
from collections.abc import Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqgen.config import DebugConfig
from seqgen.decoder import IncrementalDecoder
from seqgen.generation.ensemble.member import Member, MemberOutput, decoded
from seqgen.incremental_state import IncrementalState, rows_of_sentences
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Source, map_tensors


class LookAhead(Member):
    """A member that reads drafted tokens before they are verified.

    ``rewind`` drops rejected tokens, ``read`` reads the newest and the drafted tokens in one pass, and then
    ``next_output`` returns the stored output of each of these positions.

    If the decoder can roll back its state, ``rewind`` does so; otherwise it restores a copy of the state.

    Args:
        model: see ``Member``.
        source: see ``Member``.
        beam_size: see ``Member``.
        start_token: see ``Member``.
        debug: see ``Member``.
        reach: the largest number of positions that ``rewind`` drops.
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        source: Source,
        beam_size: int,
        start_token: int | None,
        debug: DebugConfig,
        reach: int,
    ):
        super().__init__(model, source, beam_size, start_token, debug)
        if self.state is not None:
            self.state.max_roll_back = reach
        self.can_roll_back = isinstance(model.decoder, IncrementalDecoder) and model.decoder.can_roll_back
        self.seen = 0
        """Number of columns of the decoder's input that have been read."""
        self.first = 0
        """The first column of the newest pass."""
        self.out = MemberOutput(torch.empty(0, 0), None)
        """The output for all columns of the newest pass, ``(rows, new, ...)``."""
        self.mark: tuple[int, IncrementalState] | None = None
        """``seen`` and a copy of the state at the last ``rewind``, if the decoder cannot roll back."""

    def rewind(self, columns: int) -> None:
        """Drop all columns but the first.

        Args:
            columns: number of columns to keep; at least as many as at the last call.
        """
        if self.state is None:
            self.seen = min(self.seen, columns)
            return
        if self.seen > columns:
            if self.can_roll_back:
                self.model.decoder.roll_back(self.state, self.seen - columns)  # type: ignore[operator]
                self.seen = columns
            elif self.mark is not None:
                self.seen, self.state = self.mark
        if not self.can_roll_back:
            self.mark = self.seen, copy.deepcopy(self.state)

    def read(self, tokens: Tensor, needs: Set[str] = frozenset()) -> None:
        """Read the columns that have not been read yet.

        Args:
            tokens: ``(rows, L)`` int64 from the start token on; columns read before are not read again.
            needs: ``ATTENTION`` to compute attention weights, ``FEATURES`` to store the decoder's last hidden features.
        """
        if self.start_token is not None:
            tokens = torch.cat([torch.full_like(tokens[:, :1], self.start_token), tokens[:, 1:]], dim=1)
        state: dict[str, Any] = {} if self.state is None else {"incremental_state": self.state}
        out = decoded(self.model.decoder, tokens, self.encoder_out, needs, **state)
        first = self.seen if self.state is None else 0  # without a state, all columns are computed
        self.out = map_tensors(out, lambda tensor: tensor[:, first:])
        self.first, self.seen = self.seen, tokens.size(1)

    def next_output(self, tokens: Tensor, needs: Set[str] = frozenset()) -> MemberOutput:
        """The output for the last column of ``tokens``, which the newest pass has read; see ``Member``."""
        column = tokens.size(1) - 1 - self.first
        newest: MemberOutput = map_tensors(self.out, lambda tensor: tensor[:, column])
        return replace(newest, logits=self.model.adjust_logits_during_generation(newest.logits, tokens.size(1) - 1))

    def select_sentences(self, keep: Tensor) -> None:
        """Drop all sentences except ``keep``, ``(kept,)`` int64."""
        super().select_sentences(keep)
        if self.mark is not None:
            self.model.decoder.select_sentences(self.mark[1], keep)  # type: ignore[operator]
        self.out = self.out.select(rows_of_sentences(keep, self.beam_size))
