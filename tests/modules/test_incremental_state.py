"""The decoding state: slots belong to one module, and the verbs move rows wherever they are kept."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqgen.core.decoder import IncrementalDecoder
from seqgen.core.incremental_state import IncrementalState, ModuleState, StatefulModule


class Layer(StatefulModule):
    """Keeps its rows in the second dimension, so the default would be wrong for it."""

    def reorder_state(self, module_state: ModuleState, new_order: Tensor) -> ModuleState:
        return {"sideways": module_state["sideways"].index_select(1, new_order)}


class TwoLayers(IncrementalDecoder):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleList([StatefulModule()]), Layer()])


def filled(decoder: TwoLayers, sentences: int, beam: int) -> IncrementalState:
    state = decoder.new_incremental_state(sentences, beam)
    rows = torch.arange(sentences * beam)
    decoder.layers[0][0].set_state(state, {"rows": rows, "note": "kept"})
    decoder.layers[1].set_state(state, {"sideways": torch.stack([rows, -rows])})
    decoder.advance(state, 3)
    return state


def contents(decoder: TwoLayers, state: IncrementalState) -> list[int]:
    plain, sideways = decoder.layers[0][0].get_state(state), decoder.layers[1].get_state(state)
    rows: list[int] = plain["rows"].tolist()
    assert sideways["sideways"].tolist() == [rows, [-row for row in rows]]
    assert (plain["note"], decoder.positions_seen(state)) == ("kept", 3)
    return rows


@pytest.mark.parametrize(
    ("verb", "order", "rows", "starts"),
    [
        ("reorder_incremental_state", [5, 0, 0, 3], [5, 0, 0, 3], None),
        ("reorder_beams", [[1, 1], [0, 1], [1, 0]], [1, 1, 2, 3, 5, 4], [7, 8, 9]),
        ("select_sentences", [2, 0], [4, 5, 0, 1], [9, 7]),
    ],
)
def test_verbs(verb: str, order: list[Any], rows: list[int], starts: list[int] | None) -> None:
    decoder = TwoLayers()
    state = filled(decoder, 3, 2)
    if starts:
        state.start_offsets = torch.tensor([7, 8, 9])
    getattr(decoder, verb)(state, torch.tensor(order))
    assert contents(decoder, state) == rows
    assert not starts or state.start_offsets.tolist() == starts


def test_starts_follow_any_order() -> None:
    decoder = TwoLayers()
    state = filled(decoder, 3, 2)
    state.start_offsets = torch.tensor([0, 3, 1])
    decoder.reorder_incremental_state(state, torch.tensor([3, 2, 3, 3, 5, 4, 0, 0]))
    assert state.start_offsets.tolist() == [3, 3, 1, 0]
    assert contents(decoder, state) == [3, 2, 3, 3, 5, 4, 0, 0]
    with pytest.raises(ValueError, match="start at different steps"):
        decoder.reorder_incremental_state(state, torch.tensor([0, 5]))
    # rows that start together may stand side by side, and where none starts late, in any number
    for start, order in ((2, [1, 4]), (0, [1, 2, 5, 0, 0])):
        state = filled(decoder, 3, 2)
        state.start_offsets = torch.tensor([start] * 3)
        decoder.reorder_incremental_state(state, torch.tensor(order))
        assert state.start_offsets.tolist() == [start] * ((len(order) + 1) // 2)


def test_positions_are_not_among_a_decoders_tensors() -> None:
    class Summing(IncrementalDecoder):
        """A decoder with verbs of its own, which see nothing but what it has set."""

        can_roll_back = can_merge = True

        def roll_back_state(self, module_state: ModuleState, positions: int) -> ModuleState:
            return {"total": module_state["total"] - positions}

        def merge_states(self, *states: ModuleState) -> ModuleState:
            return {"total": torch.cat([state["total"] for state in states])}

    decoder = Summing()
    first, second = (decoder.new_incremental_state(1) for _ in range(2))
    for positions, state in ((5, first), (3, second)):
        decoder.advance(state, positions)
        decoder.set_state(state, {"total": torch.tensor([positions])})
    decoder.roll_back(first, 1)
    first = decoder.merge(first, second)
    assert decoder.get_state(first)["total"].tolist() == [4, 3]
    assert (decoder.positions_seen(first), first.start_offsets.tolist()) == (4, [0, 1])
    with pytest.raises(ValueError, match="a sentence starts at position 1"):
        decoder.roll_back(first, 4)


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
