"""The decoding state: a dict that the caller owns, in which each stateful module keeps tensors under a key of its own.

A module itself keeps nothing between two steps of decoding; everything that the next step needs is in the
``incremental_state`` that the caller passes to ``forward``. So any number of decodes may run with one model at once.

::

    incremental_state                         a plain {} works: every row is then a sentence of its own
    └── key of one module                     a StateKey; a copy of the module has another one
        └── slots                             {"hidden": (N, C), ...}, or {"cache": a key/value cache}
"""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from seqgen.errors import DecodingError
from seqgen.flags import Flagged, Flags
from seqgen.renamed import former_names, keep_former_members

globals()["__getattr__"] = former_names(__name__)  # not a function, so that type checkers still know each name

ModuleState: TypeAlias = dict[str, Any]
"""The state of one module: named tensors with the row dimension first; a value that is no tensor is kept as it is."""

StateDict: TypeAlias = MutableMapping["StateKey", ModuleState]


class StateKey:
    """The key under which one module finds its slots.

    It compares by identity and belongs to one module, so that a copied or unpickled module gets a key of its own and
    two copies never share a slot.
    """

    def __init__(self, owner: StatefulModule | None = None):
        self._owner = weakref.ref(owner) if owner is not None else None

    @property
    def owner(self) -> StatefulModule | None:
        """The module that the key belongs to; ``None`` once that is gone."""
        return self._owner() if self._owner is not None else None

    def __deepcopy__(self, memo: dict[int, Any]) -> StateKey:
        return self  # a copied state still belongs to the same module; a copied module notices that it is no owner

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return StateKey, ()


@keep_former_members
class IncrementalState(dict[StateKey, ModuleState]):
    """A decoding state that also knows how its rows group into sentences.

    Attributes:
        beam_size: rows of each sentence; rows are sentence-major.
        start_offsets: ``(sentences,)`` int64, the step at which each sentence entered the batch. The rows of a sentence
            do not attend to positions before it, and their positions count from it.
        beam_table: whether self-attention keeps keys and values in place, with an indirection table; ``None`` for as
            long as that is faster. See ``modules/kv_cache/choice.py``.
        max_roll_back: how many positions of a step will be rolled back at most; modules that drop old inputs keep so
            many more.
        shared: what modules have in common, by name.
    """

    max_roll_back: int = 0

    def __init__(self, num_sentences: int, beam_size: int = 1, device: torch.device | str | None = None):
        super().__init__()
        self.beam_size = beam_size
        self.beam_table: bool | None = None
        self.shared: dict[str, Any] = {}
        self._start_offsets = torch.zeros(num_sentences, dtype=torch.int64, device=device)
        self._late: bool | None = False

    @property
    def start_offsets(self) -> Tensor:
        """See the class."""
        return self._start_offsets

    @start_offsets.setter
    def start_offsets(self, start_offsets: Tensor) -> None:
        self._start_offsets, self._late = start_offsets, None

    @property
    def has_start_offsets(self) -> bool:
        """Whether any sentence started late; the device is asked once after ``start_offsets`` has changed."""
        if self._late is None:
            self._late = bool(self._start_offsets.any())
        return self._late

    def reorder_start_offsets(self, new_order: Tensor) -> None:
        """Reorder the start offsets with the rows.

        With two beams and start offsets ``[0, 3]``, the rows ``[2, 3, 3, 2, 0, 1]`` are three sentences that start
        at 3, 3, 0.

        Args:
            new_order: ``(rows,)`` int64, the old row that each new row continues.

        Raises:
            ValueError: rows that would be beams of one sentence come from sentences that start at different steps.
        """
        sentences = -(-len(new_order) // self.beam_size)
        if not self.has_start_offsets:
            self._start_offsets = self._start_offsets.new_zeros(sentences)
            return
        start_offsets = self._start_offsets.index_select(0, new_order // self.beam_size)
        by_sentence = start_offsets.new_full((sentences, self.beam_size), -1)
        by_sentence.view(-1)[: len(start_offsets)] = start_offsets
        if bool((by_sentence != by_sentence[:, :1]).any()):
            raise ValueError(
                f"rows of sentences that start at different steps cannot become the {self.beam_size} beams of one "
                "sentence; reorder within sentences, or whole sentences"
            )
        self.start_offsets = by_sentence[:, 0].contiguous()


def beam_size_of(incremental_state: StateDict) -> int:
    """Rows of each sentence: 1 for a plain dict, whose rows are independent."""
    return getattr(incremental_state, "beam_size", 1)


class StatefulModule(nn.Module, Flagged):
    """A module that remembers tensors between two steps of decoding, in slots of the caller's state.

    An author calls ``get_state`` and ``set_state`` and, as long as every tensor has the row dimension first, needs
    nothing else: the verbs below reorder rows by ``index_select(0)``. A module that keeps tensors in another layout
    overrides ``reorder_state``; one that can do less work than moving rows overrides the narrower verbs as well. Where
    a subclass overrides ``reorder_state`` alone, narrower verbs that it inherits are replaced by the defaults, which
    call it.
    """

    flags: ClassVar[Flags] = {"reorder_state_within_beams": ("reorder_state",), "select_state": ("reorder_state",)}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "reorder_incremental_state" in cls.__dict__ and not hasattr(cls, "new_incremental_state"):
            raise TypeError(
                f"{cls.__name__} overrides reorder_incremental_state, which belongs to decoders and would never be "
                "called: delete it where it only selects rows, else override reorder_state(module_state, new_order)"
            )

    @property
    def state_key(self) -> StateKey:
        """This module's key, made at first use."""
        key: StateKey | None = self.__dict__.get("_state_key")
        if key is None or key.owner is not self:
            key = self.__dict__["_state_key"] = StateKey(self)
        return key

    def get_state(self, incremental_state: StateDict | None) -> ModuleState | None:
        """What this module remembers, or ``None`` where there is no state or it has remembered nothing yet."""
        return None if incremental_state is None else incremental_state.get(self.state_key)

    def set_state(self, incremental_state: StateDict | None, module_state: ModuleState) -> None:
        """Remember ``slots`` in place of those of the same names; does nothing without a state."""
        if incremental_state is not None:
            incremental_state[self.state_key] = {**incremental_state.get(self.state_key, {}), **module_state}

    def reorder_state(self, module_state: ModuleState, new_order: Tensor) -> ModuleState:
        """Put rows into a new order.

        Args:
            module_state: what this module remembers.
            new_order: ``(rows,)`` int64, the old row that each new row continues: any number, with repeats and drops.

        Returns:
            The module state of the new rows.
        """
        return {
            name: value.index_select(0, new_order) if isinstance(value, Tensor) else value
            for name, value in module_state.items()
        }

    def reorder_state_within_beams(self, module_state: ModuleState, parents: Tensor) -> ModuleState:
        """Put rows into a new order that stays within each sentence.

        Args:
            module_state: what this module remembers.
            parents: ``(sentences, beam)`` int64, the beam of the same sentence that each new row continues.

        Returns:
            The module state of the new rows.
        """
        return self.reorder_state(module_state, rows_of_parents(parents))

    def select_state(self, module_state: ModuleState, keep: Tensor, beam_size: int) -> ModuleState:
        """Keep the rows of some sentences.

        Args:
            module_state: what this module remembers.
            keep: ``(kept,)`` int64 indices of the sentences to keep.
            beam_size: rows of each sentence.

        Returns:
            The module state of the rows that stay.
        """
        return self.reorder_state(module_state, rows_of_sentences(keep, beam_size))

    def roll_back_state(self, module_state: ModuleState, positions: int) -> ModuleState:
        """Roll back the last positions of all rows.

        Args:
            module_state: what this module remembers.
            positions: how many.

        Returns:
            The module state as they were before those positions.

        Raises:
            DecodingError: the module does not know how; it overrides this method if it does.
        """
        raise self._cannot("roll back positions", "roll_back_state")

    def crop_state(self, module_state: ModuleState, positions: int) -> ModuleState:
        """Crop all rows on the left: remove the first positions, which no row sees.

        Args:
            module_state: what this module remembers.
            positions: how many.

        Returns:
            The module state without those positions.

        Raises:
            DecodingError: the module does not know how; it overrides this method if it does.
        """
        raise self._cannot("crop positions on the left", "crop_state")

    def merge_states(self, module_state: ModuleState, other: ModuleState) -> ModuleState:
        """Put the rows of another state behind those of this one, their positions aligned at the last one.

        Args:
            module_state: what this module remembers.
            other: what it remembers in the other state, perhaps of fewer or more positions.

        Returns:
            The module state of all rows; positions before the start offset of a row may hold any finite number.

        Raises:
            DecodingError: the module does not know how; it overrides this method if it does.
        """
        raise self._cannot("merge batches", "merge_states")

    def _cannot(self, what: str, method: str) -> DecodingError:
        return DecodingError(
            f"{type(self).__name__} cannot {what} in the middle of decoding; override its {method}, or decode without"
        )


def rows_of_parents(parents: Tensor) -> Tensor:
    """Turn beams of a sentence into rows of the batch.

    Two sentences of three beams, parents ``[[0, 0, 2], [1, 0, 0]]``, are the rows ``[0, 0, 2, 4, 3, 3]``.

    Args:
        parents: ``(sentences, beam)`` int64.

    Returns:
        ``(sentences * beam,)`` int64.
    """
    sentences, beam = parents.shape
    return (parents + torch.arange(0, sentences * beam, beam, device=parents.device).unsqueeze(1)).flatten()


def rows_of_sentences(keep: Tensor, beam_size: int) -> Tensor:
    """All rows of some sentences: ``keep`` ``[0, 2]`` with three beams gives ``[0, 1, 2, 6, 7, 8]``.

    Args:
        keep: ``(kept,)`` int64 indices of sentences.
        beam_size: rows of each sentence.

    Returns:
        ``(kept * beam_size,)`` int64.
    """
    return (keep.unsqueeze(1) * beam_size + torch.arange(beam_size, device=keep.device)).flatten()
