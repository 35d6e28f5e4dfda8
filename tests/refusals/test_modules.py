"""Layers, caches and states that cannot do what they are asked for."""

from contextlib import ExitStack
from typing import Any

import pytest
import torch

import seqgen.extend
from seqgen.core.incremental_state import IncrementalState, StatefulModule
from seqgen.extend import GrowingCache, KeyValueCache, Linear, MultiheadAttention, record_passes
from seqgen.modules import dtypes
from seqgen.modules.convolution import parse_choices, parse_convolutions
from seqgen.modules.dtypes import to_dtype
from tests.model_zoo import build
from tests.refusals import Row, refusals


def layers(text: str, *words: str) -> Row:
    return lambda: parse_convolutions("model.encoder_layers", text), "model.encoder_layers: ", *words


def choices(text: str, *words: str) -> Row:
    return lambda: parse_choices("k", text, 3), "k: ", *words


test_layers_of_a_convolutional_model = refusals(
    layers("", "cannot read ''"),
    layers("[]", "at least one layer"),
    layers("[512]", "layer 0 is 512"),
    layers("[(512, 3), (0, 3)]", "layer 1 is"),
    layers("[(512, 3, 2)]", "layer 0 is (512, 3, 2), but"),
    layers("[(512, 3)] * 100000000", "more than 1000 layers"),
    layers("[(9 ** 9 ** 9 ** 9, 3)]", "9 ** 9"),
    layers("__import__('os').getcwd()", "__import__"),
    layers("[" * 10000, "cannot read"),
    choices("[True]", "'[True]' must be True, False or a list of these, one for each of 3 layers"),
    choices("yes", "cannot read 'yes'"),
)


@pytest.fixture
def _no_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "_supports", lambda question: False)


def recorded(name: str, times: int) -> None:
    model = build(name)
    with ExitStack() as stack:
        for _ in range(times):
            stack.enter_context(record_passes(model))


def misspelt(base: str, *words: str, **body: Any) -> Row:
    return lambda: type("Own", (getattr(seqgen.extend, base),), body), *words


test_misspelt_hooks_and_flags = refusals(
    misspelt("BeamSearch", "Own defines 'begins', which nothing calls or reads (did you mean 'begin'?)", begins=1),
    misspelt("Search", "did you mean 'continues_each_beam'?", independent_rows=True),
    misspelt("IncrementalDecoder", "did you mean 'shares_encoder_output'?", share_encoder_output=True),
    misspelt("Task", "did you mean 'encode_source'?", encode_sources=1),
    misspelt("Search", "defines 'begins'", "'begin'", "; Own defines 'setp'", "'step'", begins=1, threshold=1, setp=1),
)


def attend_with(cache: Any) -> None:
    layer, state = MultiheadAttention(8, 2), IncrementalState(1)
    layer.cache = cache
    layer(torch.zeros(1, 1, 8), incremental_state=state)
    layer.roll_back_state(state[layer.state_key], 1)


class NoRollBack(GrowingCache):
    """A cache of the user's own that cannot roll back."""

    roll_back = KeyValueCache.roll_back  # type: ignore[assignment]


def change(verb: str, *arguments: Any, name: str = "transformer_tiny") -> None:
    """A change of the state after a first step; ``merge`` is given the number of beams and of steps of the other."""
    model = build(name)
    encoder_out = model.encoder(torch.tensor([[5, 6, 2]]), torch.tensor([3]))
    state, other = (model.decoder.new_incremental_state(1) for _ in range(2))
    model.decoder(torch.tensor([[2]]), encoder_out, state)
    if verb == "merge":
        other.beam_size, steps = arguments
        arguments = (other,)
        if steps:
            model.decoder(torch.tensor([[2]]), encoder_out, other)
    getattr(model.decoder, verb)(state, *arguments)


test_layers_that_cannot_do_it = refusals(
    (lambda: MultiheadAttention(10, 4), "the hidden size 10 is not a multiple of the 4 attention heads"),
    (lambda: attend_with(NoRollBack()), "set it to the class NoRollBack"),
    (lambda: attend_with(NoRollBack), "NoRollBack has no roll_back; implement it"),
    (lambda: change("roll_back", 1, name="fconv_tiny"), "set max_roll_back = 1 of the decoding state"),
    (lambda: to_dtype(Linear(4, 4), "int4"), "no dtype 'int4'; choose one of: float32, bfloat16, float16, int8"),
    (lambda _no_int8: to_dtype(Linear(4, 4), "int8"), "VNNI"),
    (lambda: recorded("lstm_tiny", 1), "LSTMDecoder cannot be recorded"),
    (lambda: recorded("transformer_tiny", 2), "already being recorded"),
)

test_mistakes_of_developers = refusals(
    (lambda: MultiheadAttention(8, 2)(torch.zeros(1, 1, 8), attn_mask=torch.ones(1), is_causal=True), "either at"),
    (lambda: change("roll_back", 100), "cannot be rolled back"),
    (lambda: change("crop", 1), "1 positions cannot be cropped"),
    (lambda: change("merge", 2, 1), "1 and 2 beams"),
    (lambda: change("merge", 1, 0), "after both have decoded a step"),
    (lambda: type("Own", (StatefulModule,), {"reorder_incremental_state": print}), "override reorder_state"),
    error=(ValueError, TypeError),
)
