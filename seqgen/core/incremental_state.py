"""The decoding state: a dict that the caller owns, in which each stateful module stores tensors under a key.

A module stores nothing on itself between two decoding steps. Everything that the next step needs is in the
``incremental_state`` that the caller passes to ``forward``, so that one model can run several decodes at once.

::

    incremental_state                         a plain {} works: each row is then one sentence
    └── key of one module                     a StateKey; a copy of the module has another one
        └── module state                      {"hidden": (N, C), ...}, or {"cache": a key/value cache}
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor, nn

from seqgen.core.contract import Flagged, Flags
from seqgen.core.errors import DecodingError

ModuleState: TypeAlias = dict[str, Any]
"""The state of one module: tensors by name, whose first dimension is the row. Other values are not reordered."""

StateDict: TypeAlias = MutableMapping["StateKey", ModuleState]
"""The ``incremental_state`` of a decoder: the state of each module that has one."""


class StateKey:
    """The key of one module's state.

    Keys are compared by identity. A copied or unpickled module makes a new key, so that two copies never share state.

    Args:
        owner: the module.
    """

    def __init__(self, owner: StatefulModule | None = None):
        self._owner = weakref.ref(owner) if owner is not None else None

    @property
    def owner(self) -> StatefulModule:
        """The module that the key belongs to; an error if it no longer exists."""
        if self._owner is None or (owner := self._owner()) is None:
            raise RuntimeError(
                "a decoding state holds the state of a module that no longer exists; start with a new state"
            )
        return owner

    def __deepcopy__(self, memo: dict[int, Any]) -> StateKey:
        return self  # a copied state belongs to the same module; a copied module finds that it is not the owner

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return StateKey, ()


class IncrementalState(dict[StateKey, ModuleState]):
    """A decoding state that also stores how its rows group into sentences.

    Args:
        num_sentences: sentences in the batch.
        beam_size: rows of each sentence.
        device: where the start offsets are stored.

    Attributes:
        beam_size: rows of each sentence; rows are sentence-major.
        start_offsets: ``(sentences,)`` int64, the step at which each sentence entered the batch. The rows of a sentence
            do not attend to positions before it, and their positions count from it.
        beam_indirection: whether self-attention uses an indirection table, with which keys and values stay in place;
            with ``None``, while that is faster. See ``modules/multihead_attention.py``.
        max_roll_back: the largest number of positions that will be rolled back at once; modules that drop old inputs
            keep this many more.
        shared: values that several modules share, by name.
    """

    max_roll_back: int = 0

    def __init__(self, num_sentences: int, beam_size: int = 1, device: torch.device | str | None = None):
        super().__init__()
        self.beam_size = beam_size
        self.beam_indirection: bool | None = None
        self.shared: dict[str, Any] = {}
        self._start_offsets = torch.zeros(num_sentences, dtype=torch.int64, device=device)
        self._late: bool | None = False

    def fork(self) -> Self:
        """A copy that has the same tensors until ``select_sentences`` copies them, which must follow."""
        tensors = [leaf for _, leaf in leaves(self) if isinstance(leaf, Tensor)]
        return copy.deepcopy(self, {id(tensor): tensor for tensor in tensors})

    @property
    def start_offsets(self) -> Tensor:
        """Start offset of each sentence, ``(sentences,)`` int64; see the class."""
        return self._start_offsets

    @start_offsets.setter
    def start_offsets(self, start_offsets: Tensor) -> None:
        self._start_offsets, self._late = start_offsets, None

    @property
    def has_start_offsets(self) -> bool:
        """True if any start offset is above 0; read from the device once after each change."""
        if self._late is None:
            self._late = bool(self._start_offsets.any())
        return self._late

    def select_start_offsets(self, start_offsets: Tensor, keep: Tensor) -> None:
        """Select those of the sentences ``keep``, ``(kept,)`` int64; if all were 0, the device is not asked again."""
        self._start_offsets = start_offsets.index_select(0, keep)
        self._late = None if self._late else self._late

    def reorder_start_offsets(self, new_order: Tensor) -> None:
        """Reorder the start offsets with the rows.

        With two beams and start offsets ``[0, 3]``, the rows ``[2, 3, 3, 2, 0, 1]`` are three sentences with start
        offsets ``[3, 3, 0]``.

        Args:
            new_order: ``(rows,)`` int64, the old row that each new row continues.

        Raises:
            ValueError: the beams of a new sentence would come from sentences with different start offsets.
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


class StatefulModule(nn.Module, Flagged):
    """A module that stores tensors in the caller's state between two decoding steps.

    A subclass calls ``get_state`` and ``set_state``. If the first dimension of every tensor is the row, it overrides
    nothing: the methods below reorder rows by ``index_select(0)``. A module with another layout overrides
    ``reorder_state``. It overrides ``reorder_state_beams`` and ``select_state`` too if these can do less work
    than moving rows. A subclass that overrides only ``reorder_state`` does not inherit the other two: it gets their
    defaults, which call ``reorder_state``.
    """

    flags: ClassVar[Flags] = {"reorder_state_beams": ("reorder_state",), "select_state": ("reorder_state",)}

    state_sizes: Mapping[str, tuple[int, ...]] = {}  # an instance may have its own
    """The sizes of each tensor of the state after the rows, if they are always the same, and a state of zeros is equal
    to none; with them a model can be exported."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "reorder_incremental_state" in cls.__dict__ and not hasattr(cls, "new_incremental_state"):
            raise TypeError(
                f"{cls.__name__} overrides reorder_incremental_state, which is called for decoders only: delete the "
                "method if it only selects rows; otherwise override reorder_state(module_state, new_order)"
            )

    @property
    def state_key(self) -> StateKey:
        """This module's key, made at first use."""
        key: StateKey | None = self.__dict__.get("_state_key")
        if key is None or key._owner is None or key._owner() is not self:
            key = self.__dict__["_state_key"] = StateKey(self)
        return key

    def get_state(self, incremental_state: StateDict | None) -> ModuleState | None:
        """Read this module's state.

        Args:
            incremental_state: the decoding state; ``None`` for the parallel pass.

        Returns:
            The module state; ``None`` without a decoding state, or if this module has not stored anything yet.
        """
        return None if incremental_state is None else incremental_state.get(self.state_key)

    def set_state(self, incremental_state: StateDict | None, module_state: ModuleState) -> None:
        """Store values in this module's state; values under other names are kept.

        Args:
            incremental_state: the decoding state, changed in place; with ``None`` nothing is stored.
            module_state: values by name.
        """
        if incremental_state is not None:
            incremental_state[self.state_key] = {**incremental_state.get(self.state_key, {}), **module_state}

    def reorder_state(self, module_state: ModuleState, new_order: Tensor) -> ModuleState:
        """Put rows into a new order.

        Args:
            module_state: this module's state.
            new_order: ``(rows,)`` int64, the old row that each new row continues: any number, with repeats and drops.

        Returns:
            The module state of the new rows.
        """
        return {
            name: value.index_select(0, new_order) if isinstance(value, Tensor) else value
            for name, value in module_state.items()
        }

    def reorder_state_beams(self, module_state: ModuleState, parents: Tensor) -> ModuleState:
        """Put rows into a new order that stays within each sentence.

        Args:
            module_state: this module's state.
            parents: ``(sentences, beam)`` int64, the beam of the same sentence that each new row continues.

        Returns:
            The module state of the new rows.
        """
        return self.reorder_state(module_state, rows_of_parents(parents))

    def select_state(self, module_state: ModuleState, keep: Tensor, beam_size: int) -> ModuleState:
        """Keep the rows of some sentences.

        Args:
            module_state: this module's state.
            keep: ``(kept,)`` int64 indices of the sentences to keep.
            beam_size: rows of each sentence.

        Returns:
            The module state of the rows that are kept.
        """
        return self.reorder_state(module_state, rows_of_sentences(keep, beam_size))

    def roll_back_state(self, module_state: ModuleState, positions: int) -> ModuleState:
        """Roll back the last positions of all rows.

        Args:
            module_state: this module's state.
            positions: how many.

        Returns:
            The module state before these positions were computed.

        Raises:
            DecodingError: the module does not implement this.
        """
        raise self._cannot("roll back positions", "roll_back_state")

    def crop_state(self, module_state: ModuleState, positions: int) -> ModuleState:
        """Crop all rows on the left: remove the first positions, which no row sees.

        Args:
            module_state: this module's state.
            positions: how many.

        Returns:
            The module state without those positions.

        Raises:
            DecodingError: the module does not implement this.
        """
        raise self._cannot("crop positions on the left", "crop_state")

    def merge_states(self, module_state: ModuleState, other: ModuleState) -> ModuleState:
        """Append the rows of another state, aligned at the last position.

        Args:
            module_state: this module's state.
            other: this module's state in the other decoding state; it may have fewer or more positions.

        Returns:
            The module state of all rows; at positions before a row's start offset the values are undefined but finite.

        Raises:
            DecodingError: the module does not implement this.
        """
        raise self._cannot("merge batches", "merge_states")

    def _cannot(self, what: str, method: str) -> DecodingError:
        return DecodingError(
            f"{type(self).__name__} cannot {what} during decoding; override its {method}, or decode without this"
        )


def leaves(value: Any, path: str = "state") -> Iterator[tuple[str, Any]]:
    """The tensors and other values in dicts, tuples, lists and objects, with the names that lead to them."""
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in items:
            name = f" of {type(key.owner).__name__}" if isinstance(key, StateKey) else f".{key}"
            yield from leaves(part, path + name)
    elif isinstance(value, Tensor) or not hasattr(value, "__dict__"):
        yield path, value
    if not isinstance(value, Tensor) and hasattr(value, "__dict__"):
        for name, part in vars(value).items():
            yield from leaves(part, f"{path}.{name}")


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
