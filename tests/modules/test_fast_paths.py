"""The fast paths of decoding change nothing with any model, any memory, a cache or a mask of the user's own."""

from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.addons.checks import stepping
from seqgen.addons.checks.subject import BEAM
from seqgen.extend import DecodingError, IncrementalState, MultiheadAttention, QueryPositions, generate_continuously
from seqgen.modules.kv_cache.protocol import KeysAndValues, KeyValueCache
from seqgen.modules.step_plan import StepPlan
from tests.covering import covering
from tests.generation.test_contract import ThreeMethods
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import ARCHITECTURES, VOCAB, ZOO, build
from tests.modules.conftest import MEMORIES
from tests.scripted_model import batch_of, dictionary
from tests.subjects import subject_of
from tests.waiting_sentences import queue

LAWS = {"can_roll_back": stepping.rolling_back_changes_nothing, "can_merge": stepping.joining_batches_changes_nothing}


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize(
    ("name", "beam_indirection", "memory", "flag"),
    [
        pytest.param(
            *case, flag, marks=pytest.mark.slow if flag == "can_merge" and case[0] not in ARCHITECTURES else ()
        )
        for case in covering(list(ZOO), [True, False], MEMORIES)
        for flag in LAWS
    ],
    indirect=["memory"],
)
def test_states_of_every_model(name: str, beam_indirection: bool, memory: None, flag: str) -> None:
    """Positions are taken back, and batches join; other tests of models try neither with each kind of cache."""
    subject = subject_of(name)
    if getattr(subject.decoder, flag):
        LAWS[flag](subject, beam_indirection)
        return
    decode = stepping.Decode(subject)
    with pytest.raises(DecodingError, match=flag):
        decode.roll_back(1) if flag == "can_roll_back" else decode.merge(stepping.Decode(subject, [2], seed=2))


class PlainCache(ThreeMethods):
    """Keys and values of all positions, concatenated at every step."""

    can_merge = True
    _rows: ClassVar[list[int]] = []

    def append(self, new: KeysAndValues, rows: int) -> KeyValueCache:
        self._rows.append(rows)
        return super().append(new, rows)

    def crop(self, positions: int) -> KeyValueCache:
        self.both = self.both[:, :, :, positions:]
        return self

    def merge(self, other: KeyValueCache) -> KeyValueCache:
        two = self.both, torch.stack(other.view()[:2])
        longest = max(one.size(3) for one in two)
        self.both = torch.cat([F.pad(one, (0, 0, longest - one.size(3), 0)) for one in two], dim=1)
        return self


@pytest.mark.parametrize(("name", "beam"), [("transformer_tiny", 3), ("t5_tiny", 1)])
def test_a_users_cache_is_used(name: str, beam: int) -> None:
    """Also where sentences join; the indirection table does not replace it."""
    model, plain = build(name), build(name)
    layers = [m for m in model.decoder.modules() if isinstance(m, MultiheadAttention) and not m.encoder_decoder]
    for layer in layers[1:]:  # the first keeps its beams in place
        layer.cache = PlainCache
    rows = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2)]
    found = []
    PlainCache._rows.clear()
    for decoded in (model, plain):
        options = {"beam_size": beam, "max_len_b": 8, "beam_indirection": "on"}
        generator = make_generator([decoded], dictionary(VOCAB - 4), **options)
        assert generator.can_merge
        rolling = dict(generate_continuously(generator, queue(rows, 2)[0]))
        found.append([*generator.generate(batch_of(rows)), *(rolling[number] for number in range(len(rows)))])
    assert len(PlainCache._rows) > 8 * (len(layers) - 1) > 0
    assert_same(*found)


class LocalMask:
    """Attention to the last two positions, as a user would write it."""

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor:
        mask = super().self_attention_mask(queries, layer)
        near = queries.restrict(queries.distances < 2)
        return near if mask is None or mask.dtype == torch.bool else mask.masked_fill(~near, -1e30)


@pytest.mark.parametrize(
    ("name", "beam_indirection", "memory"),
    covering(["transformer_tiny", "t5_tiny"], [True, False], MEMORIES, times=2),
    indirect=["memory"],
)
def test_a_mask_is_one_method(name: str, beam_indirection: bool, memory: None) -> None:
    """Each layer reaches one position back; steps still equal the parallel pass."""
    subject = subject_of(name)
    model, decoder = subject.model, subject.decoder
    reach = len(decoder.layers)
    tokens = torch.randint(4, VOCAB, (3, reach + 4))
    out = model.encoder(torch.randint(4, VOCAB, (3, 5)), torch.full((3,), 5))
    changed = tokens.clone()
    changed[:, 1] = (changed[:, 1] - 3) % (VOCAB - 4) + 4
    seen, plain = [], type(decoder)
    for kind in (plain, type("Local", (LocalMask, plain), {"can_merge": True})):
        decoder.__class__ = kind
        before, after = decoder(tokens, out).logits, decoder(changed, out).logits
        seen.append(((before - after).abs().amax((0, 2)) > 1e-12).tolist())
    assert seen == [[False] + [True] * (reach + 3), [False] + [True] * (reach + 1) + [False, False]]
    stepping.joining_batches_changes_nothing(subject, beam_indirection)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_in_place(dtype: torch.dtype) -> None:
    """A row that has not begun and one that has: nothing becomes NaN, and the bias is heeded."""
    torch.manual_seed(0)
    module = MultiheadAttention(8, 2, scale=0.7, bias=False).to(dtype).eval()
    states = [IncrementalState(2, BEAM), IncrementalState(2, BEAM)]
    states[1].beam_indirection, plan = False, StepPlan()
    start_offsets = torch.tensor([0, 3]).repeat_interleave(BEAM)
    for step in range(6):
        x = torch.randn(2 * BEAM, 1, 8).to(dtype)
        allowed = (torch.arange(step + 1) >= start_offsets.unsqueeze(1)).view(2 * BEAM, 1, 1, step + 1)
        bias = torch.randn(1, 2, 1, step + 1).to(dtype).masked_fill(~allowed, torch.finfo(dtype).min / 2)
        moved = module(x, attn_mask=bias, incremental_state=states[1])[0]
        with plan.active():
            in_place = module(x, attn_mask=bias, incremental_state=states[0])[0]
        assert in_place.isfinite().all()
        begun = slice(None) if step >= 3 else slice(0, BEAM)
        torch.testing.assert_close(in_place[begun], moved[begun], rtol=0, atol=0.05 if dtype != torch.float32 else 1e-5)
