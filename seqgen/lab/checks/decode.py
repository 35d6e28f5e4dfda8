"""A decode of random tokens whose every step is compared with the parallel pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqgen.decoder import IncrementalDecoder
from seqgen.lab.checks.checking import Violation
from seqgen.lab.checks.subject import BEAM, LENGTHS, Subject, expand


class Decode:
    """A decode that stores, apart from the state, the tokens and the source of each row.

    ``step`` compares the logits with those of the parallel pass.

    Args:
        subject: the model and its ids.
        lengths: length of each source.
        seed: of the sources and of all random choices.
        beam_table: see ``IncrementalState``.
        max_roll_back: see ``IncrementalState``.
        shared: whether the encoder's output has one row for each sentence; by default if the decoder supports it.
        plain_state: whether the state is a plain dict.
    """

    def __init__(
        self,
        subject: Subject,
        lengths: list[int] = LENGTHS,
        seed: int = 1,
        beam_table: bool | None = None,
        max_roll_back: int = 0,
        *,
        shared: bool | None = None,
        plain_state: bool = False,
    ):
        self.subject, self.model = subject, subject.model
        batch = subject.inputs(lengths, 1, BEAM, seed)
        per_sentence = subject.encode(batch)
        rows = expand(per_sentence, BEAM)
        shared = self.decoder.shares_encoder_output if shared is None else shared
        self.encoder_out = per_sentence if shared else rows
        self.sources = [rows.index_select(torch.tensor([i])) for i in range(rows.num_rows)]
        self.histories = list(batch.prev_output_tokens)
        self.state: Any = {}
        if not plain_state:
            self.state = self.decoder.new_incremental_state(len(lengths), BEAM)
            self.state.beam_table = beam_table
            self.state.max_roll_back = max_roll_back
        self.generator = torch.Generator().manual_seed(seed)
        self.step(new=0)

    @property
    def decoder(self) -> IncrementalDecoder:
        """The decoder."""
        return self.subject.decoder

    def step(self, new: int = 1) -> None:
        """Append random tokens, padding among them, compute the new positions and compare their logits."""
        shape = (len(self.histories), new)
        words = torch.randint(self.subject.ids.vocab, shape, generator=self.generator)
        self.histories = [torch.cat([row, word]) for row, word in zip(self.histories, words, strict=True)]
        seen = self.decoder.positions_seen(self.state)
        width = seen + max(new, 1)  # the first step computes the start token
        tokens = torch.stack([torch.cat([row.new_full((width - len(row),), 4), row]) for row in self.histories])
        if seen > 0 and not self.decoder.reads_history:
            tokens[:, :seen] = self.subject.ids.pad  # the generator does not build these columns
        got = self.decoder(tokens, self.encoder_out, self.state).logits
        if got.shape[:2] != (len(tokens), width - seen):
            raise Violation(f"a step of {width - seen} positions returns logits {tuple(got.shape)}", step=seen)
        for rows in self._groups():
            histories = torch.stack([self.histories[row] for row in rows])
            source = self.sources[rows[0]]
            for row in rows[1:]:
                source = source.merge(self.sources[row])
            wanted = self.decoder(histories, source).logits
            count = min(got.size(1), histories.size(1))
            self.subject.same(got[rows, -count:], wanted[:, -count:], step=width - count, rows=rows, beam=BEAM)

    def _groups(self) -> list[list[int]]:
        """Rows with equal start offsets and source widths, which one parallel pass computes."""
        groups: dict[tuple[int, int], list[int]] = {}
        for row, (history, source) in enumerate(zip(self.histories, self.sources, strict=True)):
            groups.setdefault((len(history), source.encoder_out.size(1)), []).append(row)
        return list(groups.values())

    def _move(self, rows: list[int], encoder_rows: Tensor | None) -> None:
        self.histories = [self.histories[row] for row in rows]
        self.sources = [self.sources[row] for row in rows]
        if encoder_rows is not None:
            self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, encoder_rows)

    @property
    def _share(self) -> int:
        """Rows that share a row of the encoder's output."""
        return len(self.histories) // self.encoder_out.num_rows

    def reorder(self, new_order: list[int] | None = None) -> None:
        """Any order, also across sentences, by default a random one; the encoder's output is then expanded."""
        count = len(self.histories)
        rows = torch.randint(count, (count,), generator=self.generator) if new_order is None else None
        rows = torch.tensor(new_order) if rows is None else rows
        self.decoder.reorder_incremental_state(self.state, rows)
        self._move(rows.tolist(), rows // self._share)

    def reorder_beams(self, parents: list[list[int]] | None = None) -> None:
        """An order within each sentence, by default a random one."""
        shape = (len(self.histories) // BEAM, BEAM)
        chosen = torch.randint(BEAM, shape, generator=self.generator) if parents is None else torch.tensor(parents)
        self.decoder.reorder_beams(self.state, chosen)
        rows = [i * BEAM + beam for i, row in enumerate(chosen.tolist()) for beam in row]
        self._move(rows, torch.tensor(rows) if self._share == 1 else None)

    def select_sentences(self, keep: list[int]) -> None:
        """Some sentences, in any order."""
        self.decoder.select_sentences(self.state, torch.tensor(keep))
        rows = [i * BEAM + beam for i in keep for beam in range(BEAM)]
        self._move(rows, torch.tensor(rows if self._share == 1 else keep))

    def roll_back(self, positions: int) -> None:
        """Remove the last positions; their tokens are drawn again."""
        self.decoder.roll_back(self.state, positions)
        self.histories = [row[: len(row) - positions] for row in self.histories]

    def merge(self, other: Decode) -> None:
        """Append the sentences of another decode."""
        self.state = self.decoder.merge(self.state, other.state)
        self.encoder_out = self.model.encoder.merge_encoder_outs(self.encoder_out, other.encoder_out)
        self.histories += other.histories
        self.sources += other.sources

    def crop_left(self) -> None:
        """Remove the positions that no sentence attends to."""
        self.decoder.crop_left(self.state, int(self.state.start_offsets.min()))
        if int(self.state.start_offsets.min()) != 0:
            raise Violation("crop_left leaves columns that no sentence sees")
