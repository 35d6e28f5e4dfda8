"""Invariants of the decoding state: after steps and reorderings, the logits are those of the parallel pass.

``Decode`` decodes random tokens and compares each step with the parallel pass.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from seqgen.addons.checks.checking import Violation, needs, require
from seqgen.addons.checks.subject import BEAM, LENGTHS, Subject, expand
from seqgen.extend import KeyValueCache


class Decode:
    """A decode that stores, apart from the state, the tokens and the source of each row.

    ``step`` compares the logits with those of the parallel pass.

    Args:
        subject: the model and its ids.
        lengths: length of each source.
        seed: of the sources and of all random choices.
        beam_indirection: see ``IncrementalState``.
        max_roll_back: see ``IncrementalState``.
        shared: whether the encoder's output has one row for each sentence; by default if the decoder supports it.
        plain_state: whether the state is a plain dict.
    """

    def __init__(
        self,
        subject: Subject,
        lengths: list[int] = LENGTHS,
        seed: int = 1,
        beam_indirection: bool | None = None,
        max_roll_back: int = 0,
        *,
        shared: bool | None = None,
        plain_state: bool = False,
    ):
        self.subject, self.model, self.decoder = subject, subject.model, subject.decoder
        batch = subject.inputs(lengths, 1, rows_per_sentence=BEAM, seed=seed)
        per_sentence = subject.encode(batch)
        rows = expand(per_sentence, BEAM)
        shared = self.decoder.shares_encoder_output if shared is None else shared
        self.encoder_out = per_sentence if shared else rows
        self.sources = [rows.index_select(torch.tensor([i])) for i in range(rows.num_rows)]
        self.histories = list(batch.prev_output_tokens)
        self.state: Any = {}
        if not plain_state:
            self.state = self.decoder.new_incremental_state(len(lengths), BEAM)
            self.state.beam_indirection = beam_indirection
            self.state.max_roll_back = max_roll_back
        self.generator = torch.Generator().manual_seed(seed)
        self.step(new=0)

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
        wrong = [key for key in self.state if not hasattr(key, "owner")]
        require(not wrong, f"the decoding state has the key {wrong[:1]}, which no module has", seen)
        # rows with equal start offsets and source widths, which one parallel pass computes
        groups: dict[tuple[int, int], list[int]] = {}
        for row, (history, source) in enumerate(zip(self.histories, self.sources, strict=True)):
            groups.setdefault((len(history), source.encoder_out.size(1)), []).append(row)
        for rows in groups.values():
            histories = torch.stack([self.histories[row] for row in rows])
            source = self.sources[rows[0]]
            for row in rows[1:]:
                source = source.merge(self.sources[row])
            wanted = self.decoder(histories, source).logits
            count = min(got.size(1), histories.size(1))
            self.subject.same(got[rows, -count:], wanted[:, -count:], step=width - count, rows=rows, beam=BEAM)

    def _move(self, rows: list[int], encoder_rows: Tensor | None) -> None:
        self.histories = [self.histories[row] for row in rows]
        self.sources = [self.sources[row] for row in rows]
        if encoder_rows is not None:
            self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, encoder_rows)

    @property
    def _share(self) -> int:
        """Rows that share a row of the encoder's output."""
        return len(self.histories) // self.encoder_out.num_rows

    def reorder(self, count: int | None = None) -> None:
        """A random order of all or ``count`` rows, also across sentences; the encoder's output is then expanded."""
        rows = torch.randint(len(self.histories), (count or len(self.histories),), generator=self.generator)
        self.decoder.reorder_incremental_state(self.state, rows)
        self._move(rows.tolist(), rows // self._share)

    def reorder_beams(self) -> None:
        """A random order within each sentence."""
        chosen = torch.randint(BEAM, (len(self.histories) // BEAM, BEAM), generator=self.generator)
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

    def crop(self) -> None:
        """Remove the positions that no sentence attends to."""
        self.decoder.crop(self.state, int(self.state.start_offsets.min()))
        require(int(self.state.start_offsets.min()) == 0, "crop leaves columns that no sentence sees")


def _sharings(subject: Subject) -> Iterator[bool]:
    """The values of ``shared``, one row of the encoder's output for each sentence, that the decoder supports."""
    yield False
    if subject.decoder.shares_encoder_output:
        yield True


def steps_equal_parallel_pass(subject: Subject) -> None:
    """Steps of one and of several positions, without any reordering, with a plain dict and with a state."""
    for shared in _sharings(subject):
        for plain_state in (True, False):
            decode = Decode(subject, shared=shared, plain_state=plain_state)
            for new_tokens in (1, 1, 1, 3, 1, 2, 4):
                decode.step(new_tokens)


def reordering_rows_changes_nothing(subject: Subject) -> None:
    """Rows are repeated, dropped and moved across sentences."""
    for shared in _sharings(subject):
        decode = Decode(subject, shared=shared, plain_state=True)
        decode.step(1)
        for size in (12, 12, 7, 1, 9, 3, 15):
            decode.reorder(size)
            decode.step(1 + size % 2)


def reordering_beams_changes_nothing(subject: Subject) -> None:
    """Beams are reordered within their sentences, and sentences are dropped."""
    for shared in _sharings(subject):
        decode = Decode(subject, shared=shared)
        for new, keep in ((1, [0, 1, 2, 3]), (2, [0, 2, 3]), (1, [2, 0, 1])):
            decode.step(new)
            decode.reorder_beams()
            decode.step()
            decode.select_sentences(keep)
        decode.reorder()  # across sentences: keys are no longer shared
        decode.step()
        decode.reorder_beams()
        for keep in ([2, 1], [1]):
            decode.step(3)
            decode.select_sentences(keep)
        decode.step()


def rolling_back_changes_nothing(subject: Subject, beam_indirection: bool | None = None) -> None:
    """The last positions are removed and decoded again."""
    needs(subject.decoder.can_roll_back, "the decoder cannot roll back (can_roll_back)")
    needs(getattr(subject.cache, "roll_back", None) != KeyValueCache.roll_back, "the key/value cache has no roll_back")
    decode = Decode(subject, beam_indirection=beam_indirection, max_roll_back=3)
    for taken_back in (0, 1, 3, 2, 3):
        decode.step()
        decode.step(new=3)
        decode.reorder_beams()
        decode.roll_back(taken_back)
        decode.reorder_beams()
        decode.step()
    decode.step(new=3)
    decode.step()
    decode.reorder()
    decode.roll_back(2)
    decode.step(new=2)
    decode.step()


def joining_batches_changes_nothing(subject: Subject, beam_indirection: bool | None = None) -> None:
    """Sentences join a running batch, are dropped, and positions that no sentence sees are cropped."""
    needs(subject.decoder.can_merge, "the decoder cannot merge batches (can_merge)")
    needs(getattr(subject.cache, "can_merge", True), "the key/value cache cannot merge batches (can_merge)")
    first = Decode(subject, beam_indirection=beam_indirection)
    second, third = (Decode(subject, lengths, seed, beam_indirection) for lengths, seed in (([4, 11], 2), ([8], 3)))
    for _ in range(4):
        first.step()
        first.reorder_beams()
    second.reorder_beams()
    second.step()
    first.merge(second)
    for _ in range(3):
        first.reorder_beams()
        first.step()
    first.select_sentences([5, 1, 4])
    first.step(new=2)
    first.step()
    for _ in range(9):  # now the newcomer is the one that has seen more
        third.step()
    third.merge(first)
    third.step()
    third.reorder_beams()
    third.select_sentences([3, 1])
    third.crop()
    third.step(new=2)
    third.reorder_beams()
    third.step()
    third.reorder()
    third.step()


def start_offsets_are_read(subject: Subject) -> None:
    """Columns before the start offset of a sentence are masked, and do not count as positions."""
    reads = subject.decoder.can_merge and not subject.is_language_model  # which counts all columns
    needs(reads, "the decoder does not read start offsets (can_merge)")
    decoder, starts = subject.decoder, [0, 2, 3, 1]
    batch = subject.inputs(target_length=9, rows_per_sentence=BEAM)
    encoder_out = subject.encode(batch)
    rows_out = expand(encoder_out, BEAM)
    for chunks in ([1] * 9, [2, 3, 1, 3], [9]):
        state = decoder.new_incremental_state(len(LENGTHS), BEAM)
        state.start_offsets = torch.tensor(starts)
        upto, logits = 0, []
        for chunk in chunks:
            upto += chunk
            used = encoder_out if decoder.shares_encoder_output else rows_out
            logits.append(decoder(batch.prev_output_tokens[:, :upto], used, state).logits)
        got = torch.cat(logits, dim=1)
        for row in range(got.size(0)):
            start = starts[row // BEAM]
            tokens = batch.prev_output_tokens[row : row + 1, start:]
            wanted = decoder(tokens, rows_out.index_select(torch.tensor([row]))).logits
            subject.same(got[row : row + 1, start:], wanted, step=start, rows=[row], beam=BEAM)


def attention_equals_parallel_pass(subject: Subject) -> None:
    """The attention of a decode is that of the parallel pass."""
    batch, decoder = subject.inputs(target_length=4, rows_per_sentence=BEAM), subject.decoder
    encoder_out = subject.encode(batch)
    wanted = decoder(batch.prev_output_tokens, expand(encoder_out, BEAM), need_attention=True).attention
    needs(wanted is not None, "the model returns no attention")
    for shared in _sharings(subject):
        state: Any = {}
        used = encoder_out if shared else expand(encoder_out, BEAM)
        first = decoder(batch.prev_output_tokens[:, :3], used, state, need_attention=True).attention
        last = decoder(batch.prev_output_tokens, used, state, need_attention=True).attention
        got = torch.cat([first, last], dim=1)
        subject.same(got, wanted, beam=BEAM, what="the attention differs from the parallel pass")


def copies_share_no_state(subject: Subject) -> None:
    """A copied or unpickled model does not continue from the state of the original, and does not overwrite it."""
    batch, decoder = subject.inputs(target_length=3), subject.decoder
    encoder_out = subject.encode(batch)
    state: Any = {}
    decoder(batch.prev_output_tokens[:, :2], encoder_out, state)
    keys = set(state)
    wanted = decoder(batch.prev_output_tokens, encoder_out).logits
    copies = [copy.deepcopy(subject.model)]
    with suppress(Exception):  # a user's class may not allow it
        copies.append(pickle.loads(pickle.dumps(subject.model)))
    for other in copies:
        got = other.decoder(batch.prev_output_tokens, encoder_out, state).logits
        subject.same(got, wanted, what="a copied model continues from the state of the original")
        require(len(state) == 2 * len(keys), "a copied model stores its state under the key of the original")
        for key in set(state) - keys:
            del state[key]
    got = decoder(batch.prev_output_tokens, encoder_out, state).logits
    subject.same(got, wanted[:, 2:], step=2, what="a copied model overwrites the state of the original")


def states_do_not_mix(subject: Subject) -> None:
    """Two decodes with one model, one step of each at a time."""
    decoder = subject.decoder
    batches = [subject.inputs(target_length=4, seed=seed) for seed in (1, 2)]
    outs = [subject.encode(batch) for batch in batches]
    states: list[Any] = [{}, {}]
    for upto in range(1, 5):
        for batch, out, state in zip(batches, outs, states, strict=True):
            got = decoder(batch.prev_output_tokens[:, :upto], out, state).logits
            wanted = decoder(batch.prev_output_tokens[:, :upto], out).logits
            subject.same(got, wanted[:, -1:], step=upto - 1, what="two decodes at the same time change each other")
