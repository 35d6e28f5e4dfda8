"""Examples and how they are padded and combined into a batch, the base class of datasets, and sentence pairs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqgen.core.contract import Hooked
from seqgen.core.errors import DataError
from seqgen.core.structures import Batch, Source
from seqgen.data.token_store import TokenStore, listed
from seqgen.data.tokenizers.languages import AddedTokens


class Example(NamedTuple):
    """A sentence and its translation, if it has one.

    Attributes:
        id: index in the dataset, from 0.
        source: ``(S,)`` int64 ids, end-of-sentence included.
        target: ``(T,)`` int64 ids, end-of-sentence included, or ``None``.
        columns: further values by name, which are ``inputs`` of the batch's source: numbers, arrays and sequences of
            ids.
    """

    id: int
    source: Tensor
    target: Tensor | None = None
    columns: Mapping[str, Any] = MappingProxyType({})


def pad_rows(rows: Sequence[Tensor], pad: int, left: bool = False) -> Tensor:
    """Put sequences into the rows of one tensor, padded to the length of the longest.

    Args:
        rows: ``(length,)`` int64 each.
        pad: id of padding.
        left: whether shorter rows are padded on the left.

    Returns:
        ``(N, longest)`` int64.
    """
    side = "left" if left else "right"
    padded: Tensor = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=pad, padding_side=side)
    return padded.long()


def collate(
    examples: Sequence[tuple[Any, ...]],
    *,
    source_pad: int,
    target_pad: int,
    start_token: int,
    left_pad_source: bool = False,
    column_pads: Mapping[str, int] = MappingProxyType({}),
) -> Batch:
    """Combine examples into a batch.

    With ``start_token`` s, padding p and the targets ``[a b e]`` and ``[c e]`` (e: end-of-sentence)::

        target              a b e      prev_output_tokens  s a b
                            c e p                          s c p

    Args:
        examples: an ``Example`` for each sentence, or its first fields; either all have a target or none has.
        source_pad: id of padding in the source vocabulary.
        target_pad: id of padding in the target vocabulary.
        start_token: id that ``prev_output_tokens`` begins with.
        left_pad_source: whether sources are padded on the left.
        column_pads: the id of padding of each column that has ids. They are padded on the right, and the column
            ``NAME_lengths`` has their lengths; the values of other columns are stacked.

    Returns:
        The batch: ``src_tokens`` ``(N, S)``, ``target`` and ``prev_output_tokens`` ``(N, T)``, where S and T are the
        lengths of the longest source and the longest target.

    Raises:
        DataError: the examples have different columns, or values of different shapes without padding.
    """
    ids, sources, targets, columns = zip(*(Example(*each) for each in examples), strict=True)
    source_lengths = torch.tensor([len(row) for row in sources])
    inputs = _collate_columns(columns, column_pads)
    source = Source(pad_rows(sources, source_pad, left_pad_source), source_lengths, inputs=inputs)
    if all(row is None for row in targets):
        return Batch(torch.tensor(ids), source, ntokens=int(source_lengths.sum()))
    shifted = pad_rows([row[:-1] for row in targets], target_pad)
    return Batch(
        ids=torch.tensor(ids),
        source=source,
        prev_output_tokens=torch.cat([shifted.new_full((len(targets), 1), start_token), shifted], 1),
        target=pad_rows(targets, target_pad),
        ntokens=sum(len(row) for row in targets),
    )


def _collate_columns(examples: Sequence[Mapping[str, Any]], pads: Mapping[str, int]) -> dict[str, Tensor]:
    """The columns of a batch by name, ``(N, ...)``; see ``collate``."""
    found: dict[str, Tensor] = {}
    for name in sorted(set().union(*examples)):
        values = [torch.as_tensor(columns[name]) for columns in examples if name in columns]
        if len(values) < len(examples) or (name not in pads and len({value.shape for value in values}) > 1):
            raise DataError(
                f"the column {name!r} is missing in some examples, or its values differ in shape and are no ids of "
                "Task.columns; give all the same"
            )
        found[name] = pad_rows(values, pads[name]) if name in pads else torch.stack(values)
        found |= {f"{name}_lengths": torch.tensor([*map(len, values)])} if name in pads else {}
    return found


NO_LIMIT = np.iinfo(np.int32).max
"""The limit of the length of examples if there is none."""
MAX_EXAMPLES = 5
"""Number of lines that a note names."""


class Dataset(Hooked):
    """Base class: the examples of a split. They may depend on seed and epoch, such as noise, and on a state."""

    def __len__(self) -> int:
        """Number of examples."""
        raise NotImplementedError

    def lengths(self, epoch: int, seed: int) -> NDArray[np.int32]:
        """``(n, sides)`` tokens of the source and, if there is one, the target of each example, with end-of-sentence.

        Args:
            epoch: number of the epoch, from 1.
            seed: the run's seed.
        """
        raise NotImplementedError

    def example(self, position: int, *, epoch: int, seed: int) -> Any:
        """The ``Example`` (or other input of ``collate``) at a position; equal arguments give equal results.

        Args:
            position: index of the example, from 0.
            epoch: number of the epoch, from 1.
            seed: the run's seed.
        """
        raise NotImplementedError

    def limited(self, max_source_positions: int | None, max_target_positions: int | None) -> Dataset:
        """The same data under further limits; by default all of it.

        Args:
            max_source_positions: maximum source tokens, end-of-sentence included; ``None`` for no further limit.
            max_target_positions: maximum target tokens, likewise.
        """
        return self

    def report(self) -> list[str]:
        """Notes for the user, such as how many pairs are skipped; by default none."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """The state that training changes: plain values and tensors, the same in all ranks; by default there is none.

        The examples of an epoch are those of the state before its first update; later changes count from the next one.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned, by new values of attributes."""

    def with_state(self, state: dict[str, Any]) -> Dataset:
        """A copy with a state, which later changes of this dataset do not change; see ``load_state_dict``."""
        other = copy.copy(self)
        other.load_state_dict(copy.deepcopy(state))
        return other


@dataclass(frozen=True)
class Side:
    """The source side or the target side of a dataset.

    Attributes:
        store: the ids of each line, without end-of-sentence.
        added: the tokens that are added to each line.
    """

    store: TokenStore
    added: AddedTokens

    def lengths(self) -> NDArray[np.int32]:
        """``(n,)`` tokens of each line, end-of-sentence included."""
        return self.store.lengths() + np.int32(self.num_added)

    @property
    def num_added(self) -> int:
        """The number of tokens that are added to the ids of a line."""
        return len(self.added.before) + len(self.added.after)

    def tokens(self, index: int, limit: int = NO_LIMIT) -> Tensor:
        """Read a line.

        Args:
            index: its number, from 0.
            limit: maximum tokens; a longer line is truncated before end-of-sentence.

        Returns:
            ``(length,)`` int64, end-of-sentence included.
        """
        ids = self.store[index][: limit - self.num_added]
        return torch.tensor(self.added.around(ids.tolist()), dtype=torch.int64)


class PairDataset(Dataset):
    """Sentences and their translations, if there are any.

    Pairs with an empty side are skipped. Pairs that exceed a limit are skipped, truncated or an error.

    Args:
        source: the source side.
        target: the target side; ``None`` for sources alone.
        name: the split's name, for messages.
        max_source_positions: most source tokens, end-of-sentence included; ``None`` for no limit.
        max_target_positions: likewise of the target.
        on_overlong: what is done with longer pairs: ``drop``, ``truncate`` or ``error``.

    Attributes:
        indices: ``(n,)`` int64 line, from 0, of each pair that is used.
        left_out: notes on pairs that are skipped or truncated, for the report.
        columns: returns the columns of the example of a line, from 0; by default there are none.

    Raises:
        DataError: the sides have unequal lengths, no pair is left, or a pair is too long and that is an error.
    """

    columns: Callable[[int], Mapping[str, Any]] = staticmethod(lambda line: {})

    def __init__(
        self,
        source: Side,
        target: Side | None = None,
        *,
        name: str = "data",
        max_source_positions: int | None = None,
        max_target_positions: int | None = None,
        on_overlong: str = "drop",
    ):
        if target is not None and len(source.store) != len(target.store):
            raise DataError(f"{name}: there are {len(source.store)} source lines but {len(target.store)} target lines")
        self.source, self.target, self.name, self.on_overlong = source, target, name, on_overlong
        self._limit(max_source_positions, max_target_positions)

    def _limit(self, *limits: int | None) -> None:
        self.limits, self.left_out = [NO_LIMIT if limit is None else limit for limit in limits], list[str]()
        sides = [self.source] if self.target is None else [self.source, self.target]
        lengths = np.stack([side.lengths() for side in sides], axis=1)
        ceilings = np.array(self.limits[: len(sides)], np.int32)
        empty = (lengths == np.array([side.num_added for side in sides])).any(1)
        self.indices = self._select(empty, (lengths > ceilings).any(1) & ~empty)
        self._lengths = np.minimum(lengths[self.indices], ceilings)
        if len(self.indices) == 0:
            raise DataError(f"{self.name}: no pair can be used. {' '.join(f'{note}.' for note in self.left_out)}")

    def _select(self, empty: NDArray[np.bool_], overlong: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Note which pairs are empty or too long; returns the numbers of the lines that are used."""
        limits = zip(self.limits, ("source", "target"), strict=True)
        longer = " or ".join(f"{limit} {side} tokens" for limit, side in limits if limit < NO_LIMIT)
        done = {
            "drop": " and are left out (task.on_overlong=truncate would use their beginnings)",
            "truncate": " and are truncated",
            "error": "",
        }[self.on_overlong]
        notes = {"have an empty side and are skipped": empty, f"are longer than {longer}{done}": overlong}
        for what, mask in notes.items():
            if len(lines := np.flatnonzero(mask)):
                examples = [self.source.store.where(int(i)) for i in lines[:MAX_EXAMPLES]]
                self.left_out.append(f"{len(lines)} pairs of {self.name} {what}: {listed(examples, len(lines))}")
        if self.on_overlong == "error" and overlong.any():
            raise DataError(
                f"{self.left_out[-1]}; shorten them, raise the limit, or set task.on_overlong to drop or truncate"
            )
        return np.flatnonzero(~empty if self.on_overlong == "truncate" else ~(empty | overlong))

    def limited(self, max_source_positions: int | None, max_target_positions: int | None) -> PairDataset:
        """The same pairs under further limits, such as a model's; the lower limit counts.

        Args:
            max_source_positions: maximum source tokens, end-of-sentence included; ``None`` for no further limit.
            max_target_positions: maximum target tokens, likewise.

        Raises:
            DataError: as in the constructor.
        """
        pairs = zip(self.limits, (max_source_positions, max_target_positions), strict=True)
        limited = copy.copy(self)
        limited._limit(*(min(limit for limit in pair if limit is not None) for pair in pairs))
        return limited

    def report(self) -> list[str]:
        """Notes on pairs that are skipped or truncated, and on unknown characters and words."""
        notes = [f"{note}." for note in self.left_out]
        for side in (self.source, self.target):
            if side is not None:
                notes += side.store.unknown_note(f"lines of {self.name}", "characters or words", MAX_EXAMPLES)
        return notes

    def __len__(self) -> int:
        return len(self.indices)

    def lengths(self, epoch: int = 0, seed: int = 0) -> NDArray[np.int32]:
        """``(n, sides)`` tokens of each pair after truncation, end-of-sentence included."""
        return self._lengths

    def __iter__(self) -> Iterator[Example]:
        return map(self.example, range(len(self)))

    def example(self, position: int, *, epoch: int = 0, seed: int = 0) -> Example:
        """The pair at a position, the same in every epoch; see ``Dataset.example``."""
        index = int(self.indices[position])
        target = None if self.target is None else self.target.tokens(index, self.limits[1])
        return Example(index, self.source.tokens(index, self.limits[0]), target, self.columns(index))
