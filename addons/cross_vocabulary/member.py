"""A member of a cross-vocabulary ensemble: its rows may have generated different numbers of tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqgen.extend import (
    DecodingSetup,
    IncrementalDecoder,
    MemberSpec,
    PlannedMember,
    Source,
    has_features,
    rows_of_parents,
    rows_of_sentences,
)


class AgreementMember(PlannedMember):
    """A member of an ensemble whose members have different vocabularies.

    Rows have different lengths, but a decoding state has one number of positions for all rows. So the state is rolled
    back to the shortest row, and each call of the decoder reads the tokens after it, padded on the right. With rows
    of 3, 5 and 4 tokens after the start token, the state keeps 3 positions, and the decoder reads the positions 3 to 5.
    A decoder that cannot roll back reads all positions at each call.

    Args:
        spec: the model and its role.
        source: the sentences as this model reads them.
        setup: how to decode.
        ends: the tokens that end an output, end-of-sentence first.
        max_len: maximum number of tokens of an output; 0 for the limit of the model.

    Attributes:
        tokens: ``(rows, 1 + T)`` int64, the start token and the generated tokens.
        lprobs: ``(rows, T)``, the log-probability of each generated token.
        lengths: ``(rows,)`` int64 number of generated tokens.
        last_steps: ``(sentences,)`` int64, the number of tokens after which only end-of-sentence is generated.
        unchanged: number of positions of the state that no row has changed since.
    """

    unchanged = sys.maxsize

    def __init__(self, spec: MemberSpec, source: Source, setup: DecodingSetup, ends: Sequence[int], max_len: int):
        super().__init__(spec.model, source, setup.beam_size, None, setup.fast)
        self.ends, eos = list(ends), ends[0]
        self.temperature = setup.temperature
        decoder = spec.model.decoder
        if not (isinstance(decoder, IncrementalDecoder) and decoder.can_roll_back):
            self.state = None
        rows, device = source.src_tokens.size(0) * self.beam_size, source.src_tokens.device
        self.tokens = torch.full((rows, 1), spec.model.start_token(eos), device=device)
        self.lprobs = torch.zeros(rows, 0, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        longest = spec.model.max_positions()[1]
        limits = replace(setup.limits, max_len=min(max_len or longest, longest))
        self.last_steps = limits.last_steps(source.src_lengths)
        if (room := spec.model.max_target_lengths(source.src_lengths)) is not None:
            self.last_steps = torch.minimum(self.last_steps, room - 1)

    def next_lprobs(self, steps: Tensor, min_len: int) -> Tensor:
        """The log-probabilities of the next token, ``(rows, V)``; undefined where a row waits.

        Args:
            steps: ``(rows,)`` bool, the rows that generate a token; at least one.
            min_len: number of tokens before end-of-sentence.
        """
        decoder: Any = self.model.decoder
        columns = 1 + int(self.lengths[steps].max())
        seen = 0
        arguments: dict[str, Any] = {}
        if self.state is not None:
            seen = decoder.positions_seen(self.state)
            if (excess := seen - min(int(self.lengths.min()), self.unchanged)) > 0:
                decoder.roll_back(self.state, excess)
                seen -= excess
            self.state.max_roll_back = columns - seen
            arguments["incremental_state"] = self.state
        # a waiting row may be shorter or longer than the columns; its result is not used
        newest = (self.lengths.clamp(max=columns - 1) - seen).clamp(min=0)
        rows = torch.arange(len(newest), device=newest.device)
        if has_features(decoder):  # so that the vocabulary is scored at one position of each row only
            features = decoder.extract_features(self.tokens[:, :columns], self.encoder_out, **arguments)[0]
            logits = decoder.output_layer(features[rows, newest])
        else:
            logits = decoder(self.tokens[:, :columns], self.encoder_out, **arguments)[0][rows, newest]
        logits = self._adjusted(logits)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        lprobs = self.model.get_normalized_probs(logits / self.temperature)
        self.lprobs = self.lprobs.to(lprobs.dtype)
        return self._limited(lprobs, min_len)

    def _adjusted(self, logits: Tensor) -> Tensor:
        """Apply ``adjust_logits_during_generation``, which depends on the number of generated tokens."""
        if not self.model.adjusts_logits:
            return logits
        adjusted = logits.clone()
        for length in self.lengths.unique().tolist():
            rows = self.lengths == length
            adjusted[rows] = self.model.adjust_logits_during_generation(logits[rows], length)
        return adjusted

    def _limited(self, lprobs: Tensor, min_len: int) -> Tensor:
        """Forbid end-of-sentence before ``min_len`` tokens, and all other tokens at the maximum length."""
        full = self.lengths >= self.last_steps.repeat_interleave(self.beam_size)
        ends = lprobs[:, self.ends].masked_fill(((self.lengths < min_len) & ~full).unsqueeze(1), -torch.inf)
        lprobs = lprobs.masked_fill(full.unsqueeze(1), -torch.inf)
        lprobs[:, self.ends] = ends
        return lprobs

    def reorder_beams(self, parents: Tensor) -> None:
        """See ``Member.reorder_beams``; the histories are reordered, too."""
        if self.beam_size > 1:
            super().reorder_beams(parents)
        self._select_rows(rows_of_parents(parents))

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Member.select_sentences``."""
        super().select_sentences(keep)
        self._select_rows(rows_of_sentences(keep, self.beam_size))
        self.last_steps = self.last_steps.index_select(0, keep)

    def _select_rows(self, rows: Tensor) -> None:
        self.tokens, self.lprobs = self.tokens.index_select(0, rows), self.lprobs.index_select(0, rows)
        self.lengths = self.lengths.index_select(0, rows)

    def force(self, tokens: Tensor) -> None:
        """Append a token to each row, with the model's score.

        Args:
            tokens: ``(rows,)`` int64; -1 for a row that waits.
        """
        lprobs = self.next_lprobs(tokens >= 0, min_len=0).gather(1, tokens.clamp(min=0).unsqueeze(1))
        self.append(tokens, lprobs.squeeze(1))

    def append(self, tokens: Tensor, lprobs: Tensor) -> None:
        """Append the next token of each row.

        Args:
            tokens: ``(rows,)`` int64; -1 for a row that waits.
            lprobs: ``(rows,)``, their log-probabilities.
        """
        steps = tokens >= 0
        rows, places = steps.nonzero().squeeze(1), self.lengths[steps]
        if len(rows) and int(places.max()) == self.lprobs.size(1):
            self.tokens = torch.nn.functional.pad(self.tokens, (0, 1), value=self.ends[0])
            self.lprobs = torch.nn.functional.pad(self.lprobs, (0, 1))
        self.tokens[rows, places + 1] = tokens[steps]
        self.lprobs[rows, places] = lprobs[steps]
        self.lengths = self.lengths + steps
