"""Key/value caches by hand: padding and keys follow the rows, and merged tables keep their slots apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seqgen.core.incremental_state import IncrementalState
from seqgen.modules.attention import attend
from seqgen.modules.kv_cache.growing import GrowingCache, StaticCache
from seqgen.modules.kv_cache.indirection import IndirectionCache, IndirectionTable
from seqgen.modules.kv_cache.protocol import KeysAndValues, KeyValueCache, join_rows
from seqgen.modules.multihead_attention import choose_cache


def keys(*rows: list[float]) -> Tensor:
    """Keys ``(N, 1, K, 1)`` with these values."""
    return torch.tensor(rows).view(len(rows), 1, -1, 1)


def new(*rows: list[float], padding: list[list[bool]] | None = None) -> KeysAndValues:
    return KeysAndValues(keys(*rows), 10 * keys(*rows), None if padding is None else torch.tensor(padding))


def values(cache: KeyValueCache) -> list[list[float]]:
    found = cache.view()
    assert torch.equal(10 * found.keys, found.values)
    return found.keys.flatten(1).tolist()


def test_padding_follows_the_rows() -> None:
    cache = GrowingCache().append(new([1.0, 2.0], [3.0, 4.0], padding=[[False, True], [False, False]]), 2)
    cache = cache.reorder(torch.tensor([1, 0])).append(new([5.0], [6.0]), 2)
    assert values(cache) == [[3.0, 4.0, 5.0], [1.0, 2.0, 6.0]]
    assert cache.view().padding_mask.tolist() == [[False, False, False], [False, True, False]]  # type: ignore[union-attr]
    cache = cache.roll_back(1).crop(1)
    assert values(cache) == [[4.0], [2.0]]
    assert cache.view().padding_mask.tolist() == [[False], [True]]  # type: ignore[union-attr]


def test_shorter_rows_are_hidden_where_they_are_filled_up() -> None:
    joined = join_rows([new([1.0, 2.0, 3.0]), new([4.0])], left=False)
    assert joined.keys.flatten(1).tolist() == [[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]
    assert joined.padding_mask.tolist() == [[False, False, False], [False, True, True]]  # type: ignore[union-attr]


def test_keys_of_a_sentence_that_rows_share() -> None:
    cache: KeyValueCache = StaticCache().append(new([1.0], [2.0]), 6)
    cache = cache.reorder(torch.tensor([5, 0, 1]))
    assert values(cache) == [[2.0], [1.0], [1.0]]
    assert values(cache.reorder(torch.tensor([2, 0, 1]))) == [[1.0], [2.0], [1.0]]


def test_beams_after_reordering_rolling_back_and_cropping() -> None:
    """Two beams: beam 0 continues beam 1, the newest position is removed, and then the first."""
    table = IndirectionTable(1, 2, torch.device("cpu"))
    cache: KeyValueCache = IndirectionCache(table, stays=True).append(new([1.0], [2.0]), 2)
    cache = cache.reorder_beams(torch.tensor([[1, 1]])).append(new([3.0], [4.0]), 2)
    assert values(cache) == [[2.0, 3.0], [2.0, 4.0]]
    cache = cache.append(new([5.0], [6.0]), 2)
    assert values(cache.roll_back(1)) == [[2.0, 3.0], [2.0, 4.0]]
    assert values(cache.append(new([7.0], [8.0]), 2).crop(1)) == [[3.0, 7.0], [4.0, 8.0]]


def test_masks_are_built_again_after_a_change() -> None:
    table = IndirectionTable(1, 2, torch.device("cpu"))
    cache = IndirectionCache(table, stays=True).append(new([1.0], [2.0]), 2)

    def allowed() -> list[list[bool]]:
        return cache.attended(None, False, 1, torch.float32).mask[0, 0].isfinite().tolist()  # type: ignore[index]

    assert allowed() == [[True, False], [False, True]]
    cache = cache.reorder_beams(torch.tensor([[1, 1]]))
    assert allowed() == [[False, True], [False, True]]


def test_positions_that_are_added_have_a_slot_of_their_own() -> None:
    """The shorter table uses as many slots as the longer one, some of which no beam uses any more."""
    longer, shorter = (IndirectionTable(1, 2, torch.device("cpu")) for _ in range(2))
    longer.table, longer.length, longer.used = torch.tensor([[[0, 1, 2], [0, 1, 3]]]), 3, 4
    shorter.table, shorter.length, shorter.used = torch.tensor([[[0, 2], [0, 3]]]), 2, 4
    merged = longer.merge(shorter)
    assert merged.table.tolist() == [[[0, 1, 2], [0, 1, 3]], [[4, 0, 2], [4, 0, 3]]]
    assert (merged.length, merged.used, merged.capacity) == (3, 5, 5)


def test_all_layers_share_one_table() -> None:
    state = IncrementalState(1, beam_size=2)
    first = choose_cache(state, new([1.0], [2.0])).append(new([1.0], [2.0]), 2)
    second = choose_cache(state, new([3.0], [4.0])).append(new([3.0], [4.0]), 2)
    assert isinstance(first, IndirectionCache)
    assert isinstance(second, IndirectionCache)
    assert first.table is second.table


@pytest.mark.parametrize("beams", [1, 3])
def test_few_numbers_of_keys_in_bfloat16(beams: int) -> None:
    """In 100 steps, attention gets few different numbers of keys, because oneDNN compiles a kernel for each."""
    torch.manual_seed(0)
    numbers = {}
    for dtype in (torch.bfloat16, torch.float32):
        table = IndirectionTable(1, beams, torch.device("cpu"))
        cache: KeyValueCache = IndirectionCache(table, stays=True) if beams > 1 else GrowingCache()
        found = numbers[dtype] = set[int]()
        for _ in range(100):
            cache = cache.append(KeysAndValues(*torch.randn(2, beams, 2, 1, 8).to(dtype)), beams)
            cache = cache.reorder_beams(torch.randint(beams, (1, beams)))
            query = torch.randn(beams, 2, 1, 8).to(dtype)
            keys, values, mask, _ = cache.attended(None, False, 1, dtype)
            found.add(keys.size(2))
            all_beams = query.transpose(0, 1).reshape(1, 2, beams, 8)
            seen, _ = attend(all_beams, keys, values, mask)
            view = cache.view()
            expected, _ = attend(query, view.keys, view.values)
            torch.testing.assert_close(seen[0].transpose(0, 1), expected.squeeze(2), rtol=0.02, atol=0.02)
    assert len(numbers[torch.bfloat16]) <= 100 * beams / 32 + 4
    assert len(numbers[torch.float32]) > 50
