"""Key/value caches: after any operations they hold what lists of each row's positions hold, in little memory."""

from collections.abc import Callable
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.core.incremental_state import IncrementalState, rows_of_parents, rows_of_sentences
from seqgen.extend import GrowingCache, KeysAndValues, KeyValueCache, StaticCache
from seqgen.modules.attention import attend, fold_beams, unfold_beams
from seqgen.modules.kv_cache.indirection import IndirectionCache, IndirectionTable
from seqgen.modules.multihead_attention import MultiheadAttention, choose_cache

BEAM, LAYERS = 3, 2
CPU = torch.device("cpu")


def heads_of(numbers: Tensor, padding: Tensor | None = None) -> KeysAndValues:
    """Two heads of size 1: these numbers, and their negatives; the values are ten times the keys."""
    keys = torch.stack([numbers, -numbers], dim=1).unsqueeze(3)
    return KeysAndValues(keys, 10 * keys, padding if padding is not None and padding.any() else None)


class Batch:
    """The caches of two layers, and for each row its numbers, NaN where undefined, and which of them are padding."""

    def __init__(self, kind: str, chance: Random):
        self.kind, self.chance = kind, chance
        self.generator = torch.Generator().manual_seed(chance.randrange(10**6))
        sentences = chance.randint(1, 3)
        table = IndirectionTable(sentences, BEAM, CPU)
        makes: dict[str, Callable[[], KeyValueCache]] = {"source": StaticCache, "growing": GrowingCache}
        make = makes.get(kind, lambda: IndirectionCache(table, stays=kind == "table that stays"))
        self.caches = [make() for _ in range(LAYERS)]
        self.numbers = torch.zeros(sentences * BEAM, 0, dtype=torch.float64)
        self.padding = self.numbers.bool()
        if kind == "source":  # beams share keys; a source may be padded on either side
            numbers = self.random(sentences, chance.randint(1, 4))
            padding = (torch.arange(numbers.size(1)) == 0) & (self.random(sentences, 1) > 0)
            new = [heads_of(numbers + 5 * layer, padding) for layer in range(LAYERS)]
            self.caches = [cache.append(one, sentences * BEAM) for cache, one in zip(self.caches, new, strict=True)]
            self.numbers, self.padding = (x.repeat_interleave(BEAM, 0) for x in (numbers, padding))
        else:
            self.append()

    @property
    def sentences(self) -> int:
        return len(self.numbers) // BEAM

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def append(self) -> None:
        """Append positions, padding among them at times; or one position by the faster method."""
        if self.kind == "source":
            return
        numbers = self.random(len(self.numbers), self.chance.choice([1, 1, 1, 3]))
        padding = (numbers > 0.5) & (self.chance.random() < 0.05)
        by_step = numbers.size(1) == 1 and self.numbers.size(1) > 0 and self.chance.random() < 0.5
        for layer, cache in enumerate(self.caches):
            new = heads_of(numbers + 5 * layer, padding)
            memory = cache.step_memory() if by_step and new.padding_mask is None else None
            if memory is None:
                self.caches[layer] = cache.append(new, len(numbers))
            else:  # (N, 2, 1, 1) -> (rows of the memory * 2, beams, 1)
                by_head = (x.view(memory.rows, -1, 2).transpose(1, 2).reshape(2 * memory.rows, -1, 1) for x in new[:2])
                self.caches[layer] = cache.append_step(*by_head)
        self.numbers, self.padding = torch.cat([self.numbers, numbers], 1), torch.cat([self.padding, padding], 1)

    def move(self, rows: Tensor) -> None:
        self.numbers, self.padding = self.numbers[rows], self.padding[rows]

    def reorder(self) -> None:
        order = torch.randint(len(self.numbers), (BEAM * self.chance.randint(1, 4),), generator=self.generator)
        self.caches = [cache.reorder(order) for cache in self.caches]
        self.move(order)

    def reorder_beams(self) -> None:
        parents = torch.randint(BEAM, (self.sentences, BEAM), generator=self.generator)
        self.caches = [cache.reorder_beams(parents) for cache in self.caches]
        self.move(rows_of_parents(parents))

    def select(self) -> None:
        keep = torch.randperm(self.sentences, generator=self.generator)[: max(1, self.sentences - 1)]
        self.caches = [cache.select(keep, BEAM) for cache in self.caches]
        self.move(rows_of_sentences(keep, BEAM))

    def roll_back(self) -> None:
        self.remove("roll_back", slice(None, -1))

    def crop(self) -> None:
        self.remove("crop", slice(1, None))

    def remove(self, verb: str, kept: slice) -> None:
        if self.kind == "source" or self.numbers.size(1) > 1:
            self.caches = [getattr(cache, verb)(1) for cache in self.caches]
        if self.kind != "source" and self.numbers.size(1) > 1:
            self.numbers, self.padding = self.numbers[:, kept], self.padding[:, kept]

    def merge(self) -> None:
        """A batch of another length; targets are aligned on the right, and sources on the left."""
        kinds = ["source"] if self.kind == "source" else [self.kind] * 3 + ["growing", "table", "table that stays"]
        other = Batch(self.chance.choice(kinds), self.chance)
        for _ in range(self.chance.randint(0, 5)):
            other.append()
            other.chance.choice([other.reorder_beams, other.reorder])()
        self.caches = [one.merge(two) for one, two in zip(self.caches, other.caches, strict=True)]
        length = max(self.numbers.size(1), other.numbers.size(1))
        numbers, padding = [], []
        for one in (self, other):
            lacking = length - one.numbers.size(1)
            where = (0, lacking) if self.kind == "source" else (lacking, 0)
            numbers.append(F.pad(one.numbers, where, value=torch.nan))
            padding.append(F.pad(one.padding, where, value=self.kind == "source"))
        self.numbers, self.padding = torch.cat(numbers), torch.cat(padding)

    def check(self) -> None:
        known, rows = ~self.numbers.isnan(), len(self.numbers)
        query = self.random(rows, 1, 2, 1)
        unmasked = self.kind == "source" or (bool(known.all()) and self.chance.random() < 0.5)
        allowed = known if unmasked else known & (self.random(*known.shape) < 1)
        visible = (allowed & ~self.padding).any(1)
        mask = allowed[:, None, None, :]
        if self.chance.random() < 0.5:
            mask = torch.zeros_like(mask, dtype=torch.float64).masked_fill(~mask, -1e30)
        for layer, cache in enumerate(self.caches):
            wanted = heads_of(self.numbers + 5 * layer, self.padding)
            seen = cache.view()
            for got, one in zip(seen[:2], wanted[:2], strict=True):
                got = got.repeat_interleave(rows // len(got), 0).squeeze(3).transpose(1, 2)
                torch.testing.assert_close(got[known], one.squeeze(3).transpose(1, 2)[known])
            hidden = torch.zeros_like(self.padding) if seen.padding_mask is None else seen.padding_mask
            assert torch.equal(hidden.repeat_interleave(rows // len(hidden), 0)[known], self.padding[known])
            given = None if unmasked else mask  # keys that beams share cannot have one
            hides = self.padding | ~allowed
            scores = query.transpose(1, 2) * wanted.keys.transpose(2, 3)
            weights = scores.masked_fill(hides[:, None, None, :], -torch.inf).softmax(-1)
            out = (weights @ wanted.values.nan_to_num()).flatten(2).transpose(1, 2)[visible]
            keys, values, over, _ = cache.attended(given, False, 1, torch.float64)
            found, _ = attend(fold_beams(query, len(keys)), keys, values, over, scale=1.0)
            torch.testing.assert_close(unfold_beams(found, rows)[visible], out)
            if cache.step_memory() is not None:
                memory, over = cache.attended_step(given, torch.float64)
                folded = query.view(memory.rows, -1, 2).transpose(1, 2).reshape(2 * memory.rows, -1, 1)
                found = memory.attend(folded, over, 1.0).view(memory.rows, 2, -1, 1)
                torch.testing.assert_close(unfold_beams(found, rows)[visible], out)


OPERATIONS = ["append"] * 5 + ["reorder_beams"] * 4 + ["select", "select", "roll_back", "crop", "merge"]


@torch.no_grad()
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["growing", "table", "table that stays", "source"])
def test_any_operations(kind: str, seed: int, memory: None) -> None:
    """An order across sentences, after which there is no table, comes late."""
    chance = Random(seed)
    batch = Batch(kind, chance)
    for number in range(40):
        operation = chance.choice(OPERATIONS if number < 25 else [*OPERATIONS, "reorder"])
        if operation != "merge" or len(batch.numbers) < 30:
            getattr(batch, operation)()
        batch.check()


@torch.no_grad()
def test_keys_of_the_encoder_stay_one_per_sentence() -> None:
    """They are projected once, are not expanded to beams, and do not move while beams change places."""
    module, state = MultiheadAttention(8, 2, encoder_dim=6), IncrementalState(2, BEAM)
    module(torch.randn(6, 1, 8), torch.randn(2, 4, 6), incremental_state=state)
    keys = state[module.state_key]["cache"].view().keys
    assert keys.shape == (2, 2, 4, 4)
    module(torch.randn(6, 1, 8), None, incremental_state=state)  # the encoder's output is not read again
    moved = module.reorder_state_beams(state[module.state_key], torch.tensor([[2, 0, 1], [0, 0, 0]]))
    assert moved["cache"].view().keys is keys


@pytest.mark.parametrize("histories", ["shared", "apart", "apart for long"])
def test_memory_of_long_outputs(histories: str) -> None:
    """Slots grow with the positions, not with beams times positions, where histories come together; or are given up."""
    state, new = IncrementalState(2, 6), heads_of(torch.zeros(12, 1))
    state.beam_indirection = None if histories == "apart for long" else True
    cache = choose_cache(state, new, 12)
    for _ in range(500):
        cache = cache.append(new, 12)
        if histories == "shared":
            cache = cache.reorder_beams(torch.randint(6, (2, 6)))
    if histories == "apart for long":
        assert type(cache) is GrowingCache
    else:
        assert isinstance(cache, IndirectionCache)
        assert (cache.memories[0].size(2) < 500 * 1.25 + 6 * 256) == (histories == "shared")


@pytest.mark.parametrize("beams", [1, 3])
def test_few_numbers_of_keys_in_bfloat16(beams: int) -> None:
    """In 100 steps, attention gets few different numbers of keys, because oneDNN compiles a kernel for each."""
    numbers = {}
    for dtype in (torch.bfloat16, torch.float32):
        state, found = IncrementalState(1, beams), numbers.setdefault(dtype, set[int]())
        new = heads_of(torch.zeros(beams, 1, dtype=dtype))
        cache = choose_cache(state, new, beams)
        for _ in range(100):
            cache = cache.append(new, beams).reorder_beams(torch.randint(beams, (1, beams)))
            found.add(cache.attended(None, False, 1, dtype).keys.size(2))
    assert len(numbers[torch.bfloat16]) <= 100 * beams / 32 + 4
    assert len(numbers[torch.float32]) > 50
