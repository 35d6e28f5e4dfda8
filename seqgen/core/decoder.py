"""The base classes of decoders."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from seqgen.core.contract import Flagged, Flags, check_returned
from seqgen.core.errors import DecodingError
from seqgen.core.incremental_state import (
    IncrementalState,
    ModuleState,
    StateDict,
    StatefulModule,
    StateKey,
    rows_of_parents,
    rows_of_sentences,
)
from seqgen.core.structures import DecoderOut, EncoderOut


class Decoder(nn.Module, Flagged):
    """Predicts the next target token at each position.

    ``forward`` is ``extract_features`` followed by ``output_layer``; a subclass implements these two, or ``forward`` as
    a whole.
    """

    flags: ClassVar[Flags] = {"is_composed": ("forward",), "normalizes_by_softmax": ("get_normalized_probs",)}
    safe_values: ClassVar[Mapping[str, Any]] = {"is_composed": False, "normalizes_by_softmax": False}

    is_composed: bool = True
    """True if ``forward`` is ``output_layer(extract_features(...))``; training then projects no padding."""

    normalizes_by_softmax: bool = True
    """True if ``get_normalized_probs`` is the softmax, so that a search can rank logits."""

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, *, need_attention: bool = False
    ) -> DecoderOut:
        """Score the next token at each position.

        Args:
            prev_output_tokens: ``(N, T)`` int64 target tokens so far, after the model's start token.
            encoder_out: what the encoder returned, one row for each row of ``prev_output_tokens``.
            need_attention: whether to return the attention weights.

        Returns:
            Logits ``(N, T, V)``, and attention ``(N, T, S)``; ``None`` if not requested or not available.
        """
        found = self.extract_features(prev_output_tokens, encoder_out, need_attention=need_attention)
        features, attention = found if type(found) is tuple else check_returned(self, "extract_features", found, tuple)
        return DecoderOut(self.output_layer(features), attention)

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, *, need_attention: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the last hidden features.

        Args:
            prev_output_tokens: ``(N, T)`` int64.
            encoder_out: what the encoder returned.
            need_attention: whether to return the attention weights.

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

    def early_exit(self, hidden: Tensor) -> Tensor:
        """Predict from the output of one of ``layers`` as if that layer were the last one.

        A decoder implements it if it has a ``ModuleList`` ``layers``, each of which returns its output first.

        Args:
            hidden: ``(..., C)`` output of a layer.

        Returns:
            Logits ``(..., V)``.
        """
        raise NotImplementedError

    def output_product(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """The output layer as a matrix product, if it is one; training then computes the loss with less memory.

        An inherited ``output_product`` is not used if a subclass overrides ``output_layer``.

        Args:
            features: ``(..., C)``.

        Returns:
            Features ``(..., C)``, weight ``(V, C)`` and bias ``(V,)`` or ``None``, such that ``output_layer(features)``
            is ``features @ weight.T + bias``; ``None`` if the output layer is not such a product.
        """
        return None

    def output_columns(self, ids: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Prepare the output layer for a part of the vocabulary, which makes decoding with a shortlist faster.

        A subclass of ``IncrementalDecoder`` that overrides ``output_layer`` or ``forward`` does not inherit it.

        Args:
            ids: ``(U,)`` int64, ascending ids of tokens.

        Returns:
            Maps features ``(..., C)`` to the columns ``ids`` of ``output_layer(features)``, ``(..., U)``; ``None`` if
            the output layer cannot compute a part.
        """
        return None

    def get_normalized_probs(self, logits: Tensor, log_probs: bool = True) -> Tensor:
        """Normalize logits over the vocabulary, in float32 or wider.

        Args:
            logits: ``(..., V)``.
            log_probs: whether to return log-probabilities (nats) instead of probabilities.

        Returns:
            ``(..., V)``, float64 for float64 logits and float32 otherwise.
        """
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return logits.log_softmax(-1, dtype=dtype) if log_probs else logits.softmax(-1, dtype=dtype)

    def max_positions(self) -> int:
        """The length of the longest target, in tokens with end-of-sentence; 1,024 unless a subclass says otherwise."""
        return 1024


_STEPPING = ("forward", "extract_features", "new_incremental_state", "positions_seen", "advance")
_MOVING = (
    *("reorder_incremental_state", "reorder_beams", "select_sentences"),
    *("reorder_state", "reorder_state_beams", "select_state"),
)


class PositionCounter(StatefulModule):
    """Counts the positions that a decoder has seen, apart from the tensors that the decoder itself stores."""

    def count(self, incremental_state: StateDict | None) -> int:
        """The number of positions so far; 0 without a state."""
        module_state = self.get_state(incremental_state)
        # no int(): in an exported graph it is symbolic
        positions: int = 0 if module_state is None else module_state["positions"]
        return positions

    def add(self, incremental_state: StateDict | None, positions: int) -> None:
        """Count more positions; does nothing without a state."""
        self.set_state(incremental_state, {"positions": self.count(incremental_state) + positions})

    def reorder_state_beams(self, module_state: ModuleState, parents: Tensor) -> ModuleState:
        """Return the count unchanged: all rows share it."""
        return module_state

    def roll_back_state(self, module_state: ModuleState, positions: int) -> ModuleState:
        """Subtract the removed positions."""
        return {**module_state, "positions": module_state["positions"] - positions}

    crop_state = roll_back_state

    def merge_states(self, module_state: ModuleState, other: ModuleState) -> ModuleState:
        """The larger count, since positions are aligned at the last one."""
        return {"positions": max(module_state["positions"], other["positions"])}


class IncrementalDecoder(StatefulModule, Decoder):
    """A decoder that can continue from a state.

    Without a state, ``forward`` is the parallel, teacher-forced pass. With a state, it computes only the positions that
    the state has not seen, and returns the same values for them as the parallel pass. A subclass begins at
    ``positions_seen`` and calls ``advance`` at the end::

        start = self.positions_seen(incremental_state)
        new_tokens = prev_output_tokens[:, start:]
        ...
        self.advance(incremental_state, new_tokens.size(1))

    The methods that reorder rows go through all module states in the decoding state, also those of submodules.
    """

    flags: ClassVar[Flags] = {
        "moves_rows_by_modules": ("reorder_incremental_state",),
        "shares_encoder_output": ("forward", "extract_features"),
        "reads_history": ("forward", "extract_features"),
        "output_columns": ("forward", "output_layer"),
        "can_roll_back": (*_STEPPING, *_MOVING, "roll_back", "roll_back_state"),
        "can_merge": (*_STEPPING, *_MOVING, "merge", "merge_states", "crop", "crop_state", "columns_to_crop"),
    }

    safe_values: ClassVar[Mapping[str, Any]] = {"moves_rows_by_modules": False}

    is_composed = True

    moves_rows_by_modules: bool = True
    """True if ``reorder_incremental_state`` only calls the modules, so that ``reorder_beams`` and ``select_sentences``
    may call faster methods of the modules in its place."""

    shares_encoder_output: bool = False
    """True if ``encoder_out`` may have one row for each sentence when the decoder has one for each beam."""

    reads_history: bool = True
    """True if ``forward`` reads columns of ``prev_output_tokens`` that the state has seen. If not, the generator does
    not build them, and their values are undefined."""

    can_roll_back: bool = False
    """True if ``roll_back`` works: every module with a state overrides ``roll_back_state``."""

    can_merge: bool = False
    """True if ``merge`` and ``crop`` work, which continuous batching needs: every module with a state overrides
    ``merge_states`` and ``crop_state``, and the decoder takes ``IncrementalState.start_offsets`` into account."""

    def __init__(self) -> None:
        super().__init__()
        self.position_counter = PositionCounter()

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
    ) -> DecoderOut:
        """Score the next token at each position that the state has not seen.

        Args:
            prev_output_tokens: ``(N, T)`` int64 all target tokens so far, after the model's start token. With a state,
                the columns that it has seen are not read again.
            encoder_out: what the encoder returned.
            incremental_state: the state, updated in place; ``None`` for the parallel pass.
            need_attention: whether to return the attention weights.

        Returns:
            Logits ``(N, new positions, V)``, and attention, ``(N, new positions, S)`` or ``None``.
        """
        found = self.extract_features(prev_output_tokens, encoder_out, incremental_state, need_attention=need_attention)
        features, attention = found if type(found) is tuple else check_returned(self, "extract_features", found, tuple)
        return DecoderOut(self.output_layer(features), attention)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the last hidden features of the positions that the state has not seen.

        Args:
            prev_output_tokens: see ``forward``.
            encoder_out: see ``forward``.
            incremental_state: see ``forward``.
            need_attention: see ``forward``.

        Returns:
            Features ``(N, new positions, C)``, and attention ``(N, new positions, S)`` or ``None``.
        """
        raise NotImplementedError

    def new_incremental_state(
        self, num_sentences: int, beam_size: int = 1, device: torch.device | str | None = None
    ) -> IncrementalState:
        """Make an empty state for ``num_sentences * beam_size`` rows.

        Args:
            num_sentences: sentences in the batch.
            beam_size: rows of each sentence.
            device: where the start offsets are stored.
        """
        return IncrementalState(num_sentences, beam_size, device)

    def positions_seen(self, incremental_state: StateDict | None) -> int:
        """The number of positions that the state has seen; 0 without a state."""
        return self.position_counter.count(incremental_state)

    def advance(self, incremental_state: StateDict | None, new_positions: int) -> None:
        """Add ``new_positions`` to the positions seen; does nothing without a state."""
        self.position_counter.add(incremental_state, new_positions)

    def reorder_incremental_state(self, incremental_state: StateDict, new_order: Tensor) -> None:
        """Reorder the rows of a state, in place.

        Args:
            incremental_state: the state of this decoder.
            new_order: ``(rows,)`` int64, the old row that each new row continues; any number of rows, with repeats.
        """
        if isinstance(incremental_state, IncrementalState):
            incremental_state.reorder_start_offsets(new_order)
        _change(incremental_state, "reorder_state", new_order)

    def reorder_beams(self, incremental_state: StateDict, parents: Tensor) -> None:
        """Reorder rows within each sentence, in place.

        Args:
            incremental_state: the state of this decoder.
            parents: ``(sentences, beam)`` int64, the beam of the same sentence that each new row continues.
        """
        if self.moves_rows_by_modules:
            _change(incremental_state, "reorder_state_beams", parents)
        else:
            self.reorder_incremental_state(incremental_state, rows_of_parents(parents))

    def select_sentences(self, incremental_state: StateDict, keep: Tensor) -> None:
        """Keep the rows of some sentences and drop the others, in place.

        Args:
            incremental_state: the state of this decoder.
            keep: ``(kept,)`` int64 indices of the sentences to keep.
        """
        beam_size = getattr(incremental_state, "beam_size", 1)
        start_offsets = incremental_state.start_offsets if isinstance(incremental_state, IncrementalState) else None
        if self.moves_rows_by_modules:
            _change(incremental_state, "select_state", keep, beam_size)
        else:
            self.reorder_incremental_state(incremental_state, rows_of_sentences(keep, beam_size))
        if isinstance(incremental_state, IncrementalState) and start_offsets is not None:
            # whether an overriding method moved them or not
            incremental_state.select_start_offsets(start_offsets, keep)

    def roll_back(self, incremental_state: StateDict, positions: int) -> None:
        """Roll back the last positions of all rows, in place.

        Args:
            incremental_state: the state of this decoder.
            positions: how many. If modules of the decoder drop old inputs, at most ``max_roll_back`` of the state, as
                it was set before the last step, and only positions of that step.

        Raises:
            DecodingError: the decoder cannot roll back, or a module has dropped inputs that it would need.
        """
        _check_can(self, self.can_roll_back, "roll back positions", "can_roll_back")
        seen = self.positions_seen(incremental_state)
        if not 0 <= positions <= seen:
            raise ValueError(f"{positions} of {seen} positions cannot be rolled back")
        if isinstance(incremental_state, IncrementalState) and incremental_state.has_start_offsets:
            latest = int(incremental_state.start_offsets.max())
            if seen - positions < latest:
                raise ValueError(
                    f"{positions} of {seen} positions cannot be rolled back: a sentence starts at position {latest}"
                )
        if positions > 0:
            _change(incremental_state, "roll_back_state", positions)

    @property
    def merge_obstacle(self) -> str:
        """Why the states of two batches cannot be merged although ``can_merge`` is true; empty if they can.

        A module states its reason in an attribute ``merge_obstacle``.
        """
        return next(filter(None, (getattr(module, "merge_obstacle", "") for module in list(self.modules())[1:])), "")

    def crop(self, incremental_state: IncrementalState, positions: int) -> None:
        """Crop all rows on the left, in place: remove the first positions, which no sentence sees.

        Args:
            incremental_state: the state of this decoder; its start offsets decrease by ``positions``.
            positions: how many, at most the smallest start offset.

        Raises:
            DecodingError: the decoder cannot crop.
        """
        _check_can(self, self.can_merge, "crop positions on the left", "can_merge")
        start_offsets = incremental_state.start_offsets
        if not 0 <= positions <= int(start_offsets.min()):
            raise ValueError(
                f"{positions} positions cannot be cropped: a sentence starts at position {int(start_offsets.min())}"
            )
        self.drop_first(incremental_state, positions)
        incremental_state.start_offsets = start_offsets - positions

    def drop_first(self, incremental_state: IncrementalState, positions: int) -> None:
        """Drop the first positions, in place, but leave the start offsets unchanged; ``crop`` does both.

        Args:
            incremental_state: the state of this decoder.
            positions: how many; no sentence may see them.
        """
        columns = self.columns_to_crop(incremental_state, positions)
        counter = {self.position_counter.state_key} & {*incremental_state}
        for count, keys in ((positions, counter), (columns, {*incremental_state} - counter)):
            if count:
                _change(incremental_state, "crop_state", count, keys=keys)

    def columns_to_crop(self, incremental_state: IncrementalState, positions: int) -> int:
        """The number of positions that ``crop`` removes from the state of modules; fewer if there is a prompt.

        Args:
            incremental_state: the state of this decoder, before it is cropped.
            positions: target positions that no sentence sees.
        """
        return positions

    def merge(self, incremental_state: IncrementalState, other: IncrementalState) -> IncrementalState:
        """Append the sentences of another state during decoding.

        Positions are aligned at the last one. With 5 positions here and 2 there, the merged state has seen 5, and the
        start offsets of the sentences of ``other`` increase by 3.

        Args:
            incremental_state: a state of this decoder; neither it nor ``other`` may be used afterwards.
            other: another state of this decoder, with the same beam size.

        Returns:
            The state of all sentences, those of ``other`` last.

        Raises:
            DecodingError: the decoder cannot merge.
            ValueError: one of the states has seen no position, or they differ in the model or in the beam size.
        """
        _check_can(self, self.can_merge, "merge batches", "can_merge")
        if incremental_state.beam_size != other.beam_size:
            raise ValueError(f"batches of {incremental_state.beam_size} and {other.beam_size} beams cannot be merged")
        states = incremental_state, other
        seen = [self.positions_seen(state) for state in states]
        if 0 in seen or set(incremental_state) != set(other):
            raise ValueError("batches can be merged only after both have decoded a step, with the same model")
        merged = copy.copy(incremental_state)
        merged.shared = {}
        begins = [state.start_offsets + max(seen) - n for state, n in zip(states, seen, strict=True)]
        merged.start_offsets = torch.cat(begins)
        for key, module_state in incremental_state.items():
            merged[key] = key.owner.merge_states(module_state, other[key])
        return merged

    def set_beam_size(self, beam_size: int) -> None:
        """Called before a search with the number of rows of each sentence; the built-in models ignore it."""


def _check_can(decoder: Decoder, can: bool, what: str, attribute: str) -> None:
    if not can:
        raise DecodingError(
            f"{type(decoder).__name__} cannot {what} during decoding; if all of its modules can, set "
            f"{attribute} = True in the class"
        )


def _change(
    incremental_state: StateDict, method: str, *arguments: Any, keys: Collection[StateKey] | None = None
) -> None:
    """Change the state of each module, in place, by a method that returns the new state.

    Args:
        incremental_state: the state of a decoder.
        method: name of the method of a ``StatefulModule``.
        arguments: its arguments after the module state.
        keys: the keys of the modules whose state is changed; all by default.
    """
    for key in list(incremental_state if keys is None else keys):
        changed = getattr(key.owner, method)(incremental_state[key], *arguments)
        incremental_state[key] = changed if type(changed) is dict else check_returned(key.owner, method, changed, dict)
