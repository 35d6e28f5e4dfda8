"""The decoding state: slots belong to one module, and the verbs move rows wherever they are kept."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from seqgen.core.decoder import IncrementalDecoder
from seqgen.core.incremental_state import (
    IncrementalState,
    ModuleState,
    StatefulModule,
    rows_of_parents,
    rows_of_sentences,
)


class Layer(StatefulModule):
    """Keeps its rows in the second dimension, so the default would be wrong for it."""

    def reorder_state(self, module_state: ModuleState, new_order: Tensor) -> ModuleState:
        return {"sideways": module_state["sideways"].index_select(1, new_order)}


class Plain(StatefulModule):
    pass


class TwoLayers(IncrementalDecoder):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleList([Plain()]), Layer()])


def filled(decoder: TwoLayers, sentences: int, beam: int) -> IncrementalState:
    state = decoder.new_incremental_state(sentences, beam)
    rows = torch.arange(sentences * beam)
    decoder.layers[0][0].set_state(state, {"rows": rows, "note": "kept"})
    decoder.layers[1].set_state(state, {"sideways": torch.stack([rows, -rows])})
    decoder.advance(state, 3)
    return state


def contents(decoder: TwoLayers, state: IncrementalState) -> list[int]:
    plain, sideways = decoder.layers[0][0].get_state(state), decoder.layers[1].get_state(state)
    assert plain is not None
    assert sideways is not None
    assert plain["rows"].tolist() == sideways["sideways"][0].tolist() == (-sideways["sideways"][1]).tolist()
    assert plain["note"] == "kept"
    assert decoder.positions_seen(state) == 3
    rows: list[int] = plain["rows"].tolist()
    return rows


def test_worked_examples() -> None:
    assert rows_of_parents(torch.tensor([[0, 0, 2], [1, 0, 0]])).tolist() == [0, 0, 2, 4, 3, 3]
    assert rows_of_sentences(torch.tensor([0, 2]), 3).tolist() == [0, 1, 2, 6, 7, 8]


def test_verbs() -> None:
    decoder = TwoLayers()
    state = filled(decoder, 3, 2)
    decoder.reorder_incremental_state(state, torch.tensor([5, 0, 0, 3]))
    assert contents(decoder, state) == [5, 0, 0, 3]

    state = filled(decoder, 3, 2)
    decoder.reorder_beams(state, torch.tensor([[1, 1], [0, 1], [1, 0]]))
    assert contents(decoder, state) == [1, 1, 2, 3, 5, 4]

    state = filled(decoder, 3, 2)
    state.start_offsets = torch.tensor([7, 8, 9])
    decoder.select_sentences(state, torch.tensor([2, 0]))
    assert contents(decoder, state) == [4, 5, 0, 1]
    assert state.start_offsets.tolist() == [9, 7]


def test_starts_follow_any_order() -> None:
    decoder = TwoLayers()
    state = filled(decoder, 3, 2)
    state.start_offsets = torch.tensor([0, 3, 1])
    decoder.reorder_incremental_state(state, torch.tensor([3, 2, 3, 3, 5, 4, 0, 0]))
    assert state.start_offsets.tolist() == [3, 3, 1, 0]
    assert contents(decoder, state) == [3, 2, 3, 3, 5, 4, 0, 0]
    decoder.reorder_beams(state, torch.tensor([[1, 1], [0, 1], [1, 0], [0, 0]]))
    assert state.start_offsets.tolist() == [3, 3, 1, 0]
    with pytest.raises(ValueError, match="start at different steps"):
        decoder.reorder_incremental_state(state, torch.tensor([0, 5]))
    state.start_offsets = torch.tensor([2, 2, 2, 2])
    decoder.reorder_incremental_state(state, torch.tensor([0, 5]))
    assert state.start_offsets.tolist() == [2]

    state = filled(decoder, 3, 2)  # where all start together any rows may stand side by side
    decoder.reorder_incremental_state(state, torch.tensor([1, 2, 5, 0, 0]))
    assert state.start_offsets.tolist() == [0, 0, 0]


def test_no_position_is_forgotten_before_a_sentence_starts() -> None:
    class Counter(IncrementalDecoder):
        can_roll_back = True

    decoder = Counter()
    state = decoder.new_incremental_state(2)
    decoder.advance(state, 5)
    state.start_offsets = torch.tensor([0, 3])
    with pytest.raises(ValueError, match="a sentence starts at position 3"):
        decoder.roll_back(state, 3)
    decoder.roll_back(state, 2)
    assert decoder.positions_seen(state) == 3


def test_positions_are_not_among_a_decoders_tensors() -> None:
    """So that a decoder's own verbs see nothing but what it has set."""

    class Summing(IncrementalDecoder):
        can_roll_back = can_merge = True

        def roll_back_state(self, module_state: ModuleState, positions: int) -> ModuleState:
            return {name: value - positions for name, value in module_state.items()}

        crop_state = roll_back_state

        def merge_states(self, module_state: ModuleState, other: ModuleState) -> ModuleState:
            return {name: torch.cat([value, other[name]]) for name, value in module_state.items()}

    decoder = Summing()
    states = [decoder.new_incremental_state(1) for _ in range(2)]
    for positions, state in zip((5, 3), states, strict=True):
        decoder.advance(state, positions)
        assert decoder.get_state(state) is None
        decoder.set_state(state, {"total": torch.tensor([positions])})
    decoder.roll_back(states[0], 1)
    state = decoder.merge(*states)
    assert decoder.get_state(state)["total"].tolist() == [4, 3]
    assert decoder.positions_seen(state) == 4
    assert decoder.positions_seen({}) == decoder.positions_seen(None) == 0


def test_a_module_that_overrides_the_general_verb_is_asked_for_the_narrow_ones_too() -> None:
    class Narrow(StatefulModule):
        def reorder_state_beams(self, module_state: ModuleState, parents: Tensor) -> ModuleState:
            raise AssertionError

        def select_state(self, module_state: ModuleState, keep: Tensor, beam_size: int) -> ModuleState:
            raise AssertionError

    class Sideways(Narrow, Layer):
        reorder_state = Layer.reorder_state

    decoder = TwoLayers()
    decoder.layers[1] = Sideways()
    state = filled(decoder, 2, 2)
    decoder.reorder_beams(state, torch.tensor([[1, 1], [0, 1]]))
    decoder.select_sentences(state, torch.tensor([0]))
    assert contents(decoder, state) == [1, 1]


def test_a_plain_dict_is_a_state_of_independent_rows() -> None:
    decoder = TwoLayers()
    state: dict = {}
    decoder.layers[0][0].set_state(state, {"rows": torch.arange(4), "note": "kept"})
    decoder.select_sentences(state, torch.tensor([3, 1]))
    assert decoder.layers[0][0].get_state(state)["rows"].tolist() == [3, 1]


def test_a_decoder_that_overrides_the_general_verb_is_asked_for_the_narrow_ones_too() -> None:
    class Own(TwoLayers):
        def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
            orders.append(new_order.tolist())
            super().reorder_incremental_state(incremental_state, new_order)

    orders: list[list[int]] = []
    decoder = Own()
    state = filled(decoder, 2, 2)
    state.start_offsets = torch.tensor([3, 1])
    decoder.reorder_beams(state, torch.tensor([[1, 1], [0, 0]]))
    assert state.start_offsets.tolist() == [3, 1]
    decoder.select_sentences(state, torch.tensor([1]))
    assert orders == [[1, 1, 2, 2], [2, 3]]
    assert state.start_offsets.tolist() == [1]
    assert contents(decoder, state) == [2, 2]


@pytest.mark.parametrize("clone", [copy.deepcopy, copy.copy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_of_a_module_do_not_share_a_slot(clone) -> None:
    module, state = Plain(), {}
    module.set_state(state, {"rows": torch.arange(2)})
    twin = clone(module)
    assert twin.get_state(state) is None
    twin.set_state(state, {"rows": torch.arange(3)})
    assert len(module.get_state(state)["rows"]) == 2


def test_a_copied_state_still_belongs_to_its_module() -> None:
    decoder = TwoLayers()
    state = filled(decoder, 2, 2)
    branch = copy.deepcopy(state)
    decoder.reorder_incremental_state(branch, torch.tensor([1, 1]))
    assert contents(decoder, branch) == [1, 1]
    assert contents(decoder, state) == [0, 1, 2, 3]


def test_a_layer_whose_reorder_would_never_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="reorder_state"):

        class Wrong(StatefulModule):
            def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None: ...


def test_slots_of_a_module_that_is_gone_are_an_error() -> None:
    decoder = TwoLayers()
    state = filled(decoder, 1, 2)
    decoder.layers[1] = Layer()
    with pytest.raises(RuntimeError, match="no longer exists"):
        decoder.reorder_incremental_state(state, torch.tensor([0]))
