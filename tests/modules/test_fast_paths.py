"""The fast paths of decoding change nothing: beams in place, packed weights, joining batches, rolling back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.addons.checks import stepping
from seqgen.addons.checks.stepping import Decode
from seqgen.addons.checks.subject import BEAM, LENGTHS, expand
from seqgen.core.errors import ConfigError, DecodingError
from seqgen.core.incremental_state import IncrementalState
from seqgen.decoding.continuous_batching import generate_continuously
from seqgen.modules import attention
from seqgen.modules.kv_cache import growing, indirection
from seqgen.modules.kv_cache.growing import GrowingCache
from seqgen.modules.kv_cache.indirection import IndirectionCache, IndirectionTable
from seqgen.modules.kv_cache.protocol import KeysAndValues, KeyValueCache
from seqgen.modules.masks import QueryPositions
from seqgen.modules.multihead_attention import MultiheadAttention
from tests.covering import covering
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, ZOO, build
from tests.scripted_model import batch_of, dictionary
from tests.subjects import subject_of
from tests.waiting_sentences import queue

MEMORIES = ["roomy", "tight", "rounded"]

every_model_and_memory = pytest.mark.parametrize(
    ("name", "beam_indirection", "memory"), covering(list(ZOO), [True, False], MEMORIES), indirect=["memory"]
)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture(params=MEMORIES)
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With much room; with so little that slots are collected and memories grow all the time; with rounded numbers.

    With rounded numbers of keys, which are usual in bfloat16 only, what is not initialized is NaN.
    """
    if request.param == "tight":
        monkeypatch.setattr(indirection, "_BLOCK", 2)
        monkeypatch.setattr(growing, "_BLOCK", 1)
    if request.param == "rounded":
        monkeypatch.setattr(attention, "_COMPILED", (torch.float64,))
        monkeypatch.setattr(attention, "_ROUNDED", 4)
        torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("name", "beam_indirection", "memory"),
    covering(list(ZOO), [None, True, False], MEMORIES, times=2),
    indirect=["memory"],
)
def test_beams_in_place(name: str, beam_indirection: bool | None, memory: None) -> None:
    decode = Decode(subject_of(name), beam_indirection=beam_indirection)
    for step in range(12):
        decode.reorder_beams()
        decode.step(new=1 + (step % 4 == 2))
        if step == 5:
            decode.select_sentences([3, 0, 2])
    decode.reorder()
    decode.step()
    decode.reorder_beams()
    decode.step()


@every_model_and_memory
def test_positions_taken_back(name: str, beam_indirection: bool, memory: None) -> None:
    subject = subject_of(name)
    if subject.decoder.can_roll_back:
        stepping.rolling_back_changes_nothing(subject, beam_indirection)
        return
    with pytest.raises(DecodingError, match="can_roll_back"):
        subject.decoder.roll_back({}, 1)


def test_more_positions_than_there_are_cannot_be_taken_back() -> None:
    decode = Decode(subject_of("transformer_tiny"))
    with pytest.raises(ValueError, match="cannot be rolled back"):
        decode.decoder.roll_back(decode.state, 100)


def test_a_convolution_takes_back_only_what_it_was_told() -> None:
    decode = Decode(subject_of("fconv_tiny"))
    decode.step()
    decode.step()
    with pytest.raises(DecodingError, match="max_roll_back is 2"):
        decode.roll_back(2)


@every_model_and_memory
def test_batches_that_join(name: str, beam_indirection: bool, memory: None) -> None:
    subject = subject_of(name)
    if subject.decoder.can_merge:
        stepping.joining_batches_changes_nothing(subject, beam_indirection)
        return
    first = Decode(subject)
    with pytest.raises(DecodingError, match="can_merge"):
        first.merge(Decode(subject, [2], seed=2))


def test_batches_of_one_kind_and_the_other_join() -> None:
    """One keeps its beams in place, the other has had an order across sentences."""
    subject = subject_of("transformer_tiny")
    for flip in (False, True):
        first, second = (Decode(subject, [4, 11], seed) for seed in (2, 3))
        first.step()
        second.reorder()
        second.step()
        if flip:
            first, second = second, first
        first.encoder_out, second.encoder_out = (
            out if out.num_rows == 2 * BEAM else expand(out, BEAM) for out in (first.encoder_out, second.encoder_out)
        )
        first.merge(second)
        first.step()
        first.reorder_beams()
        first.step()


def test_refusals() -> None:
    subject = subject_of("transformer_tiny")
    first, second = (Decode(subject, [4], seed) for seed in (1, 2))
    second.state.beam_size = 2
    with pytest.raises(ValueError, match="3 and 2 beams"):
        first.merge(second)
    with pytest.raises(ValueError, match="after both have decoded a step"):
        first.decoder.merge(first.state, IncrementalState(1, BEAM))
    with pytest.raises(ValueError, match="1 positions cannot be cropped"):
        first.decoder.crop(first.state, 1)


def test_what_a_table_remembers() -> None:
    """The example of the module: three beams, two steps, then a collection."""
    table = IndirectionTable(1, 3, torch.device("cpu"))
    table.append(1)
    table.reorder(torch.tensor([[1, 1, 2]]))
    table.append(1)
    assert table.table[0, :, :2].tolist() == [[1, 3], [1, 4], [2, 5]]
    assert (table.mask(None, 1, torch.float32)[0, 0] == 0).int().tolist() == [
        [0, 1, 0, 1, 0, 0],
        [0, 1, 0, 0, 1, 0],
        [0, 0, 1, 0, 0, 1],
    ]
    table._collect()
    assert table.table[0, :, :2].tolist() == [[0, 2], [0, 3], [1, 4]]
    assert table.collected is not None
    assert table.collected.tolist() == [[1, 2, 3, 4, 5]]
    assert table.used == 5


def test_one_change_is_made_once() -> None:
    """Two layers bring the same changes; a layer that misses one is noticed."""
    table = IndirectionTable(1, 2, torch.device("cpu"))
    for _ in range(2):
        assert table.request(0, table.append, 1) == 1
    for _ in range(2):
        assert table.request(1, table.reorder, torch.tensor([[1, 0]])) == 2
    assert table.table[0, :, 0].tolist() == [1, 0]
    assert table.request(2, table.append, 1) == 3
    with pytest.raises(RuntimeError, match="must see the same positions"):
        table.request(1, table.append, 1)


@pytest.mark.parametrize("shared", [True, False])
def test_memory_of_long_outputs(shared: bool) -> None:
    """Slots grow with the positions, not with beams times positions, where histories come together."""
    torch.manual_seed(0)
    module = MultiheadAttention(4, 1)
    state = IncrementalState(2, 4)
    state.beam_indirection = True
    for _ in range(500):
        module(torch.randn(8, 1, 4), incremental_state=state)
        parents = torch.randint(4, (2, 4)) if shared else torch.arange(4).expand(2, 4)
        module_state = state[module.state_key]
        state[module.state_key] = module.reorder_state_beams(module_state, parents)
    cache = state[module.state_key]["cache"]
    assert isinstance(cache, IndirectionCache)
    capacity = cache.memories[0].size(2)
    assert capacity < 500 * 1.25 + 4 * 256 if shared else capacity >= 2000


def test_the_table_is_left_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indirection, "_BLOCK", 1)
    monkeypatch.setattr(indirection, "_MOST_SLOTS", 2)
    for beam_indirection, stays in ((None, False), (True, True)):
        decode = Decode(subject_of("transformer_tiny"), beam_indirection=beam_indirection)
        for _ in range(12):  # no beam is given up, so that each position keeps three slots
            decode.step()
        kept = IndirectionCache if stays else GrowingCache
        assert all(type(decode.state[module.state_key]["cache"]) is kept for module in own_attentions(decode))


def own_attentions(decode: Decode) -> list[MultiheadAttention]:
    modules = decode.decoder.modules()
    return [module for module in modules if isinstance(module, MultiheadAttention) and not module.encoder_decoder]


@pytest.mark.parametrize("beam_indirection", [True, False])
def test_the_logical_view_of_a_cache(beam_indirection: bool) -> None:
    """Keys that each row has seen, computed anew from its own history, whatever the memory looks like."""
    torch.manual_seed(0)
    module = MultiheadAttention(6, 2).double()
    state = IncrementalState(2, BEAM)
    state.beam_indirection = beam_indirection
    histories = torch.zeros(2 * BEAM, 0, 6, dtype=torch.float64)
    for _ in range(5):
        new = torch.randn(2 * BEAM, 1, 6, dtype=torch.float64)
        histories = torch.cat([histories, new], dim=1)
        module(new, incremental_state=state)
        parents = torch.randint(BEAM, (2, BEAM))
        state[module.state_key] = module.reorder_state_beams(state[module.state_key], parents)
        histories = histories[[i * BEAM + beam for i, row in enumerate(parents.tolist()) for beam in row]]
    keys, values, _ = state[module.state_key]["cache"].view()
    wanted = module.in_proj(histories).unflatten(2, (3, 2, 3))
    torch.testing.assert_close(keys, wanted[:, :, 1].transpose(1, 2))
    torch.testing.assert_close(values, wanted[:, :, 2].transpose(1, 2))


class PlainCache(KeyValueCache):
    """Keys and values of all positions, concatenated at every step."""

    can_merge = True

    def __init__(self) -> None:
        self.keys = self.values = torch.zeros(0)

    def append(self, new: KeysAndValues, rows: int) -> KeyValueCache:
        assert new.padding_mask is None
        APPENDED.append(type(self))
        self.keys, self.values = (
            torch.cat([old, one], dim=2) if old.numel() else one
            for old, one in ((self.keys, new.keys), (self.values, new.values))
        )
        return self

    def view(self) -> KeysAndValues:
        return KeysAndValues(self.keys, self.values)

    def reorder(self, new_order: Tensor) -> KeyValueCache:
        self.keys, self.values = (tensor.index_select(0, new_order) for tensor in (self.keys, self.values))
        return self

    def crop(self, positions: int) -> KeyValueCache:
        self.keys, self.values = (tensor[:, :, positions:] for tensor in (self.keys, self.values))
        return self

    def merge(self, other: KeyValueCache) -> KeyValueCache:
        longest = max(self.keys.size(2), other.view().keys.size(2))
        self.keys, self.values = (
            torch.cat([F.pad(one, (0, 0, longest - one.size(2), 0)) for one in two])
            for two in zip((self.keys, self.values), other.view()[:2], strict=True)
        )
        return self


class Derived(GrowingCache):
    can_merge = True

    def append(self, new: KeysAndValues, rows: int) -> KeyValueCache:
        APPENDED.append(type(self))
        return super().append(new, rows)


APPENDED: list[type] = []
"""The class of the user's cache, once for each call of ``append``."""


@pytest.mark.parametrize("own", [PlainCache, Derived])
@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny"])
def test_a_users_cache_is_used(name: str, own: type[KeyValueCache]) -> None:
    """In greedy search and in beam search, also where sentences join; the indirection table does not replace it."""
    model, plain = build(name), build(name)
    layers = [m for m in model.decoder.modules() if isinstance(m, MultiheadAttention) and not m.encoder_decoder]
    for layer in layers[1:]:  # the first keeps its beams in place
        layer.cache = own
    rows = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (2,), (7, 8, 9, 2)]
    for beam in (1, 4):
        found = []
        APPENDED.clear()
        for decoded in (model, plain):
            options = {"beam_size": beam, "max_len_b": 8, "beam_indirection": "on"}
            generator = make_generator([decoded], dictionary(VOCAB - 4), **options)
            assert generator.can_merge
            rolling = dict(generate_continuously(generator, queue(rows, 2)[0]))
            found.append([*generator.generate(batch_of(rows)), *(rolling[number] for number in range(5))])
        assert len(APPENDED) > 8 * (len(layers) - 1) > 0
        assert set(APPENDED) == {own}
        assert_same(*found)


def test_errors_of_a_users_cache() -> None:
    class NoRollBack(PlainCache):
        pass

    decode = Decode(subject_of("transformer_tiny"))
    module = own_attentions(decode)[0]
    module.cache = NoRollBack()
    with pytest.raises(ConfigError, match="set it to the class NoRollBack"):
        module(torch.zeros(1, 1, module.embed_dim).double(), incremental_state={})
    assert module.merge_obstacle == ""  # the first step says what is wrong
    module.cache = NoRollBack
    state: dict[Any, Any] = {}
    module(torch.zeros(1, 1, module.embed_dim).double(), incremental_state=state)
    with pytest.raises(DecodingError, match="NoRollBack has no roll_back; implement it"):
        module.roll_back_state(state[module.state_key], 1)


class LocalMask:
    """Attention to the last two positions, as a user would write it."""

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor:
        mask = super().self_attention_mask(queries, layer)
        near = queries.restrict(queries.distances < 2)
        return near if mask is None or mask.dtype == torch.bool else mask.masked_fill(~near, -1e30)


@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny"])
def test_a_mask_is_one_method(name: str, memory: None) -> None:
    """Each layer reaches one position back; steps still equal the parallel pass."""
    subject = subject_of(name)
    model, decoder = subject.model, subject.decoder
    reach = len(decoder.layers)
    tokens = torch.randint(4, VOCAB, (3, reach + 4))
    source = torch.randint(4, VOCAB, (3, 5))
    out = model.encoder(source, torch.full((3,), 5))
    changed = tokens.clone()
    changed[:, 1] = (changed[:, 1] - 3) % (VOCAB - 4) + 4
    seen = []
    for own in (False, True):
        if own:
            decoder.__class__ = type("Local", (LocalMask, type(decoder)), {"can_merge": True})
        before, after = decoder(tokens, out).logits, decoder(changed, out).logits
        seen.append(((before - after).abs().amax((0, 2)) > 1e-12).tolist())
    assert seen[0] == [False] + [True] * (reach + 3)
    assert seen[1] == [False] + [True] * (reach + 1) + [False, False]
    for beam_indirection in (True, False):
        first, second = (
            Decode(subject, lengths, seed=3, beam_indirection=beam_indirection) for lengths in (LENGTHS, [4])
        )
        for _ in range(4):
            first.step()
            first.reorder_beams()
        first.step(new=3)
        first.step()
        first.merge(second)
        first.step(new=2)
        first.reorder_beams()
        first.step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_in_place(dtype: torch.dtype) -> None:
    """A row that has not begun and one that has: nothing becomes NaN, and the bias is heeded."""
    torch.manual_seed(0)
    module = MultiheadAttention(8, 2, scale=1.0, bias=False).to(dtype)
    states = [IncrementalState(2, BEAM), IncrementalState(2, BEAM)]
    states[1].beam_indirection = False
    start_offsets = torch.tensor([0, 3]).repeat_interleave(BEAM)
    for step in range(6):
        x = torch.randn(2 * BEAM, 1, 8).to(dtype)
        allowed = (torch.arange(step + 1) >= start_offsets.unsqueeze(1)).view(2 * BEAM, 1, 1, step + 1)
        bias = torch.randn(1, 2, 1, step + 1).to(dtype).masked_fill(~allowed, torch.finfo(dtype).min / 2)
        in_place, moved = (module(x, attn_mask=bias, incremental_state=state)[0] for state in states)
        assert in_place.isfinite().all()
        begun = slice(None) if step >= 3 else slice(0, BEAM)
        torch.testing.assert_close(in_place[begun], moved[begun], rtol=0, atol=0.05 if dtype != torch.float32 else 1e-5)


def test_gradients_go_through_steps() -> None:
    """With gradients, nothing is written over: the gradient is that of the parallel pass."""
    torch.manual_seed(0)
    module = MultiheadAttention(4, 2).double()
    x = torch.randn(4, 3, 4, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        state = IncrementalState(2, 2)
        steps = torch.cat([module(part, incremental_state=state)[0] for part in x.split(1, dim=1)], dim=1)
        (stepped,) = torch.autograd.grad(steps.square().sum(), x)
        (full,) = torch.autograd.grad(module(x, is_causal=True)[0].square().sum(), x)
    torch.testing.assert_close(stepped, full)
