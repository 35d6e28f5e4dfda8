"""The generated tokens of the beams of a batch, stored as back-pointers.

Each step stores the token that each beam generated and its parent, the beam of the previous step that it continues.
Nothing is moved when beams are reordered. A hypothesis is read backwards from its last token. One sentence, two beams::

    step       0        1        2
    tokens     a  b     c  d     e  f
    parents    0  0     1  1     0  1

Beam 1 at step 2 has the tokens b d f, and beam 0 has b c e.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seqgen.core.candidates import Candidates, gather_beams
from seqgen.core.structures import copy_to_cpu, map_tensors, tensors_in

CONTINUATION = "token and parent"
"""The record of which token and beam each candidate has, beside those of fields with names of users."""

_BLOCK = 32
"""Memory is allocated for this many steps at a time."""


class BackPointers:
    """Tokens, parents and scores of the beams of all live sentences, step by step.

    Args:
        beam: beams of each sentence.
        start: ``(sentences,)`` int64, the start token of each sentence, with which the decoder's input begins.
    """

    def __init__(self, beam: int, start: Tensor):
        self.beam = beam
        self.start = start
        self.length = 0
        self.tokens = start.new_zeros(len(start), 0, beam)
        self.parents = torch.zeros_like(self.tokens)
        self.cumulative = torch.zeros(len(start), 0, beam, device=start.device)
        self.records: dict[str, Tensor] = {}
        """Other values of each step by name, ``(live, steps, beam, ...)``."""
        self.fields: dict[str, Tensor] = {}
        """Fields of the candidates of each step by name, ``(live, steps, K, ...)``, and under ``CONTINUATION`` what
        ``_continuations`` returns."""
        self.start_offsets = torch.zeros_like(start)
        """``(live,)`` int64 start offsets: earlier steps do not belong to the sentence."""
        self._matrix: Tensor | None = None

    def record(self, **values: Tensor | None) -> None:
        """Store values of the tokens that this step generates, before the beams are reordered.

        Args:
            values: ``(live, beam, ...)`` by the name of their field in ``Hypothesis``; ``None`` if nothing needs them.
        """
        for name, value in values.items():
            if value is not None:
                self.records[name] = _written(self.records.get(name), self.length, value)

    def record_fields(self, candidates: Candidates, fields: Mapping[str, Tensor]) -> None:
        """Store fields of the candidates of this step, ``(live, K, ...)`` by name, before the beams are reordered."""
        continuations = self._continuations(candidates.tokens, candidates.beams)
        continuations = continuations.where(candidates.scores > -torch.inf, -1)  # several may have the same filler
        for name, values in {CONTINUATION: continuations, **fields}.items():
            memory = self.fields.get(name, values.new_zeros(len(values), 0, *values.shape[1:]))
            width = max(memory.size(2), values.size(1))  # a strategy may return other numbers of candidates
            if width > memory.size(2):
                memory = _aligned(memory, self.length, self.length, width)
            self.fields[name] = _written(memory, self.length, _aligned(values.unsqueeze(1), 1, 1, width).squeeze(1))

    def fields_of(self, row: int, tokens: Tensor, parents: Tensor) -> dict[str, Tensor]:
        """The fields of a hypothesis of a live sentence, ``(T, ...)`` by name.

        Args:
            row: the sentence.
            tokens: ``(T,)`` int64 its tokens.
            parents: ``(T,)`` int64 the beam that each token continues.
        """
        places = torch.arange(len(tokens))
        found = {name: values[row, self.start_offsets[row] + places] for name, values in self.fields.items()}
        columns = found.pop(CONTINUATION) == self._continuations(tokens, parents).unsqueeze(1)
        return {name: values[places, columns.int().argmax(1)] for name, values in found.items()}

    def _continuations(self, tokens: Tensor, beams: Tensor) -> Tensor:
        """A number for each pair of a token and the beam that it continues."""
        return tokens * self.beam + beams

    def append(self, active: Candidates) -> None:
        """Append the next step.

        Args:
            active: ``beam`` candidates of each live sentence.
        """
        self.tokens = _written(self.tokens, self.length, active.tokens)
        self.parents = _written(self.parents, self.length, active.beams)
        self.cumulative = _written(self.cumulative, self.length, active.scores)
        self.length += 1
        if self._matrix is not None:
            rows = gather_beams(self._matrix, active.beams)
            self._matrix = torch.cat([rows, active.tokens.unsqueeze(-1)], dim=-1)

    def select(self, keep: Tensor) -> None:
        """Keep the sentences in ``keep``, ``(kept,)`` int64."""
        for name, value in list(vars(self).items()):
            setattr(self, name, map_tensors(value, lambda tensor: tensor.index_select(0, keep)))

    def fork(self) -> BackPointers:
        """A copy that changes independently."""
        other = copy.copy(self)
        vars(other).update(map_tensors(vars(self), Tensor.clone))
        return other

    def merge(self, other: BackPointers) -> None:
        """Append the sentences of another batch, aligned at the last step.

        With 5 steps here and 2 there, the merged batch has 5 steps, and the start offsets of the other's sentences
        increase by 3.
        """
        length = max(self.length, other.length)
        begins = [one.start_offsets + (length - one.length) for one in (self, other)]
        self.start_offsets, self.start = torch.cat(begins), torch.cat([self.start, other.start])
        for name in ("tokens", "parents", "cumulative"):
            aligned = [_aligned(getattr(one, name), one.length, length, self.beam) for one in (self, other)]
            setattr(self, name, torch.cat(aligned))
        for mine, theirs in ((self.records, other.records), (self.fields, other.fields)):
            for name, values in mine.items():
                width, further = max(values.size(2), theirs[name].size(2)), (theirs[name], other.length)
                parts = [_aligned(*part, length, width) for part in ((values, self.length), further)]
                mine[name] = torch.cat(parts)
        self.length = length
        self._matrix = None

    def crop(self, steps: int) -> None:
        """Drop the first steps, at which no sentence had started."""
        self.tokens, self.parents = self.tokens[:, steps:], self.parents[:, steps:]
        self.cumulative = self.cumulative[:, steps:]
        for kept in (self.records, self.fields):
            kept.update({name: values[:, steps:] for name, values in kept.items()})
        self.start_offsets = self.start_offsets - steps
        self.length -= steps

    def last_tokens(self) -> Tensor:
        """The newest token of each beam, ``(live, beam)`` int64: the start token before the first step."""
        return self.tokens[:, self.length - 1] if self.length else self._starts()

    def matrix(self) -> Tensor:
        """The tokens of each beam from its start token on, ``(live, beam, 1 + step)`` int64.

        The first call follows the back-pointers; later steps update the stored matrix.
        """
        if self._matrix is None:
            live = torch.arange(self.beam, device=self.tokens.device).expand(len(self.start), -1)
            columns = []
            for step in reversed(range(self.length)):
                columns.append(self.tokens[:, step].gather(1, live))
                live = self.parents[:, step].gather(1, live)
            columns.append(self._starts())
            self._matrix = torch.stack(columns[::-1], dim=-1)
        return self._matrix

    def _starts(self) -> Tensor:
        """The start token of each beam, ``(live, beam)`` int64."""
        return self.start.unsqueeze(1).expand(-1, self.beam)

    def on_cpu(self, sentences: Tensor, others: Sequence[Tensor]) -> tuple[BackPointers, list[Tensor]]:
        """Copy the back-pointers of some sentences, and other tensors, to the CPU together, which waits once.

        Args:
            sentences: ``(k,)`` int64 live sentences.
            others: tensors on the same device.
        """
        found = copy.copy(self)
        found._matrix = None
        copied = iter(copy_to_cpu([*(tensor[sentences] for tensor in tensors_in(vars(found))), *others]))
        vars(found).update(map_tensors(vars(found), lambda _: next(copied)))
        return found, list(copied)

    def trace(self, beams: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Follow the back-pointers of some hypotheses; all tensors are on the CPU.

        Args:
            beams: ``(live, B)`` int64, the beam that the last token of each of ``B`` hypotheses of a sentence
                continues.
            lengths: ``(live, B)`` int64, number of tokens before the last one.

        Returns:
            With ``L`` the largest length: the tokens before the last one ``(live, B, L)`` int64, the cumulative score
            at each of them ``(live, B, L)``, and by name what was recorded for each of them and for the last one
            ``(live, B, L + 1, ...)``, with ``parents``, the beams that they continue, if there are fields.
            Entries at and after the length of a hypothesis are undefined.
        """
        longest = int(lengths.max()) if lengths.numel() else 0
        live, begins = beams, self.start_offsets
        tokens, parents, sums = (_from(each, begins, longest) for each in (self.tokens, self.parents, self.cumulative))
        kept = {name: _from(values, begins, longest + 1) for name, values in self.records.items()}
        if self.fields:
            kept["parents"] = torch.arange(self.beam).expand(len(beams), longest + 1, -1)
        traced = torch.zeros(*live.shape, longest, dtype=torch.int64)
        totals = torch.zeros(*live.shape, longest, dtype=sums.dtype)
        records = {name: of.new_zeros(*live.shape, longest + 1, *of.shape[3:]) for name, of in kept.items()}
        for step in reversed(range(longest + 1)):
            for name, values in kept.items():
                records[name][:, :, step] = gather_beams(values[:, step], live)
            if step == 0:
                break
            inside = lengths >= step
            traced[:, :, step - 1] = tokens[:, step - 1].gather(1, live)
            totals[:, :, step - 1] = sums[:, step - 1].gather(1, live)
            live = torch.where(inside, parents[:, step - 1].gather(1, live), live)
        return traced, totals, records


def _written(memory: Tensor | None, step: int, values: Tensor) -> Tensor:
    """Write ``values`` ``(live, ...)`` at a step of ``memory`` ``(live, capacity, ...)``, enlarged if necessary."""
    capacity = 0 if memory is None else memory.size(1)
    if step >= capacity or memory is None:
        more = values.new_zeros(values.size(0), _BLOCK + capacity // 2, *values.shape[1:])
        memory = more if memory is None else torch.cat([memory.to(values.dtype), more], dim=1)
    memory.select(1, step).copy_(values)
    return memory


def _aligned(memory: Tensor, length: int, wanted: int, width: int) -> Tensor:
    """The first ``length`` steps, padded with zeros: ``(live, wanted, width, ...)``, on the left and on the right."""
    further = [0, 0] * (memory.dim() - 3)
    return torch.nn.functional.pad(memory[:, :length], (*further, 0, width - memory.size(2), wanted - length, 0))


def _from(memory: Tensor, begins: Tensor, length: int) -> Tensor:
    """``length`` steps of each sentence from its start offset: ``memory`` ``(k, steps, ...)``, ``begins`` ``(k,)``."""
    if not bool(begins.any()):
        return memory[:, :length]
    steps = (begins.unsqueeze(1) + torch.arange(length)).clamp(max=memory.size(1) - 1)
    return memory.gather(1, steps.view(*steps.shape, *[1] * (memory.dim() - 2)).expand(-1, -1, *memory.shape[2:]))
