"""Invariants of every registered model: stepping equals the parallel pass; alone equals batched; no stale weights."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.model import EncoderDecoderModel
from seqgen.modules.layer_drop import LayerDropList
from tests.decodes import BEAM, LENGTHS, TOLERANCE, Decode, assert_same
from tests.model_zoo import ZOO, build, expand, inputs

every_model = pytest.mark.parametrize("name", list(ZOO))
every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@every_model
@every_dtype
@pytest.mark.parametrize("plain_state", [True, False], ids=["plain", "state"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "expanded"])
def test_stepped_equals_full(name: str, dtype: torch.dtype, plain_state: bool, shared: bool) -> None:
    if shared and not build(name).decoder.shares_encoder_output:
        pytest.skip("the decoder needs an encoder output with a row for each beam")
    decode = Decode(build(name, dtype), name, LENGTHS, shared=shared, plain_state=plain_state)
    for new_tokens in (1, 1, 1, 3, 1, 2, 4):
        decode.step(new_tokens)


@every_model
@every_dtype
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "expanded"])
def test_stepped_equals_full_after_any_order(name: str, dtype: torch.dtype, shared: bool) -> None:
    if shared and not build(name).decoder.shares_encoder_output:
        pytest.skip("the decoder needs an encoder output with a row for each beam")
    decode = Decode(build(name, dtype), name, LENGTHS, shared=shared, plain_state=True)
    decode.step(1)
    for size in (12, 12, 7, 1, 9, 3, 15):
        rows = len(decode.histories)
        decode.reorder(torch.randint(rows, (size,), generator=decode.generator).tolist())
        decode.step(1 + size % 2)


@every_model
@every_dtype
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "expanded"])
def test_stepped_equals_full_after_reordering_beams(name: str, dtype: torch.dtype, shared: bool) -> None:
    if shared and not build(name).decoder.shares_encoder_output:
        pytest.skip("the decoder needs an encoder output with a row for each beam")
    decode = Decode(build(name, dtype), name, LENGTHS, shared=shared)
    decode.step(1)
    decode.reorder_beams([[0, 0, 2], [2, 1, 0], [1, 1, 1], [0, 1, 2]])
    decode.step(1)
    decode.reorder_beams([[1, 0, 0], [0, 2, 2], [2, 0, 1], [2, 2, 0]])
    decode.step(2)
    decode.select_sentences([0, 2, 3])
    decode.step(1)
    decode.reorder_beams([[2, 0, 1], [0, 0, 0], [1, 2, 1]])
    decode.step(1)
    decode.reorder([7, 0, 8, 1, 1, 4, 3, 7, 2])  # across sentences: keys are no longer shared
    decode.step(1)
    decode.reorder_beams([[1, 0, 0], [2, 2, 1], [0, 2, 1]])
    decode.step(3)
    decode.select_sentences([2, 1])
    decode.step(1)
    decode.select_sentences([1])
    decode.step(1)


@every_model
def test_sentences_with_start_offsets(name: str) -> None:
    """Columns before the start offset of a sentence are masked, and do not count as positions."""
    if not ZOO[name].start_offsets:
        pytest.skip("the model does not support start offsets")
    model = build(name)
    decoder = model.decoder
    starts = [0, 2, 3, 1]
    batch = inputs(name, LENGTHS, target_length=9, rows_per_sentence=BEAM)
    encoder_out = model.encoder(batch.src_tokens, batch.src_lengths)
    rows_out = expand(encoder_out, BEAM)
    for chunks in ([1] * 9, [2, 3, 1, 3], [9]):
        state = decoder.new_incremental_state(len(LENGTHS), BEAM)
        state.start_offsets = torch.tensor(starts)
        upto, logits = 0, []
        for chunk in chunks:
            upto += chunk
            used = encoder_out if decoder.shares_encoder_output else rows_out
            logits.append(decoder(batch.prev_output_tokens[:, :upto], used, state).logits)
        got = torch.cat(logits, dim=1)
        for row in range(got.size(0)):
            start = starts[row // BEAM]
            tokens = batch.prev_output_tokens[row : row + 1, start:]
            wanted = decoder(tokens, rows_out.index_select(torch.tensor([row]))).logits
            assert_same(got[row : row + 1, start:], wanted)


@every_model
@pytest.mark.parametrize("verb", ["select_sentences", "reorder_incremental_state"])
def test_start_offsets_are_reordered_with_the_rows(name: str, verb: str) -> None:
    if not ZOO[name].start_offsets:
        pytest.skip("the model does not support start offsets")
    model = build(name)
    decoder = model.decoder
    batch = inputs(name, LENGTHS, target_length=6)
    encoder_out = model.encoder(batch.src_tokens, batch.src_lengths)
    state = decoder.new_incremental_state(len(LENGTHS))
    state.start_offsets = torch.tensor([0, 0, 2, 1])
    decoder(batch.prev_output_tokens[:, :4], encoder_out, state)
    keep = torch.tensor([2, 0])
    getattr(decoder, verb)(state, keep)
    encoder_out, tokens = encoder_out.index_select(keep), batch.prev_output_tokens[keep]
    got = decoder(tokens, encoder_out, state).logits
    wanted = decoder(tokens[:1, 2:], encoder_out.index_select(torch.tensor([0]))).logits
    assert_same(got[:1], wanted[:, 2:])


@every_model
@every_dtype
def test_alone_equals_batched(name: str, dtype: torch.dtype) -> None:
    model = build(name, dtype)
    batch = inputs(name, LENGTHS, target_length=6)
    together = model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens).logits
    for row in range(len(LENGTHS)):
        assert_same(together[row : row + 1], model(*batch.alone(row)).logits)


@every_model
@every_dtype
def test_left_padding_equals_right_padding(name: str, dtype: torch.dtype) -> None:
    if not ZOO[name].either_padding:
        pytest.skip("the model reads sources padded on the right only")
    model = build(name, dtype)
    batch = inputs(name, LENGTHS, target_length=6)
    right, left = (
        model(batch.sources(ZOO[name].pad, side), batch.src_lengths, batch.prev_output_tokens).logits
        for side in (False, True)
    )
    assert_same(left, right)


@every_model
def test_every_token_matters(name: str) -> None:
    """Each source and target token changes the logits; a model that ignores its input passes the tests above."""
    model = build(name)
    batch = inputs(name, LENGTHS, target_length=5)
    logits = model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens).logits
    for column in range(int(ZOO[name].is_language_model), 5):
        changed = batch.prev_output_tokens.clone()
        changed[:, column] = (changed[:, column] + 1) % ZOO[name].vocab
        moved = (model(batch.src_tokens, batch.src_lengths, changed).logits - logits).abs().amax(-1) > 1e-9
        assert not moved[:, :column].any(), "an earlier position sees a later token"
        assert moved[:, column].all()
        assert moved[:, -1].float().mean() > 0.5 or column < 2  # convolutions have a limited width
    for row, length in enumerate(LENGTHS):
        first = batch.src_tokens.size(1) - length if batch.padded_left else 0
        for column in range(first, first + length):
            changed = batch.src_tokens.clone()
            changed[row, column] = ZOO[name].first_word + (changed[row, column] + 1) % 7
            if torch.equal(changed, batch.src_tokens):
                continue
            difference = (model(changed, batch.src_lengths, batch.prev_output_tokens).logits - logits).abs()
            assert (difference[row].amax(-1) > 1e-9).all()
            assert difference[torch.arange(len(LENGTHS)) != row].max() < 1e-10


@every_model
def test_attention_is_a_distribution_over_the_words(name: str) -> None:
    model = build(name)
    batch = inputs(name, LENGTHS, target_length=4)
    asked = model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens, need_attention=True)
    unasked = model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens)
    assert_same(asked.logits, unasked.logits)
    assert unasked.attention is None
    if asked.attention is None:
        pytest.skip("the model has no attention")
    assert_same(asked.attention.sum(-1), torch.ones(4, 4, dtype=torch.float64))
    padding = batch.src_tokens.eq(ZOO[name].pad).unsqueeze(1).expand_as(asked.attention)
    assert asked.attention[padding].abs().max() == 0
    assert asked.attention[~padding].min() > 0


@every_model
def test_attention_stepped_with_shared_encoder_output(name: str) -> None:
    model = build(name)
    if not model.decoder.shares_encoder_output:
        pytest.skip("the decoder needs one row of encoder output for each row")
    batch = inputs(name, LENGTHS, target_length=4, rows_per_sentence=BEAM)
    encoder_out = model.encoder(batch.src_tokens, batch.src_lengths)
    wanted = model.decoder(batch.prev_output_tokens, expand(encoder_out, BEAM), need_attention=True).attention
    if wanted is None:
        pytest.skip("the model has no attention to a source")
    state: Any = {}
    first = model.decoder(batch.prev_output_tokens[:, :3], encoder_out, state, need_attention=True).attention
    last = model.decoder(batch.prev_output_tokens, encoder_out, state, need_attention=True).attention
    assert_same(torch.cat([first, last], dim=1), wanted)


@every_model
def test_copies_share_no_module_state(name: str) -> None:
    model = build(name)
    batch = inputs(name, LENGTHS, target_length=3)
    encoder_out = model.encoder(batch.src_tokens, batch.src_lengths)
    state: Any = {}
    model.decoder(batch.prev_output_tokens[:, :2], encoder_out, state)
    keys = set(state)
    wanted = model.decoder(batch.prev_output_tokens, encoder_out).logits
    copies = [copy.deepcopy(model)]
    if "Parametrized" not in repr([type(module) for module in model.modules()]):  # PyTorch refuses to pickle those
        copies.append(pickle.loads(pickle.dumps(model)))
    for other in copies:
        # The copy does not continue from the state of the original, and does not overwrite it.
        assert_same(other.decoder(batch.prev_output_tokens, encoder_out, state).logits, wanted)
        assert len(state) == 2 * len(keys)
        for key in set(state) - keys:
            del state[key]
    assert_same(model.decoder(batch.prev_output_tokens, encoder_out, state).logits, wanted[:, 2:])


@every_model
def test_states_do_not_mix(name: str) -> None:
    """Two decodes with one model, one step of each at a time."""
    model = build(name)
    a, b = (inputs(name, LENGTHS, target_length=4, seed=seed) for seed in (1, 2))
    outs = [model.encoder(batch.src_tokens, batch.src_lengths) for batch in (a, b)]
    states: list[Any] = [{}, {}]
    for upto in range(1, 5):
        for batch, out, state in zip((a, b), outs, states, strict=True):
            got = model.decoder(batch.prev_output_tokens[:, :upto], out, state).logits
            wanted = model.decoder(batch.prev_output_tokens[:, :upto], out).logits
            assert_same(got, wanted[:, -1:])


def train_step(model: EncoderDecoderModel, name: str) -> dict[str, float]:
    """One step of training on random pairs; the largest gradient of each parameter."""
    batch = inputs(name, [6, 4, 7], target_length=6, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    with torch.enable_grad():
        logits = model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.prev_output_tokens[:, 1:].flatten())
        loss.backward()
    assert loss.isfinite()
    gradients = {
        key: 0.0 if parameter.grad is None else parameter.grad.abs().max().item()
        for key, parameter in model.named_parameters()
    }
    optimizer.step()
    model.eval()
    return gradients


def stepped_logits(model: EncoderDecoderModel, name: str) -> Tensor:
    """Logits of a decode in evaluation mode, step by step; cached weights are used."""
    batch = inputs(name, LENGTHS, target_length=5)
    encoder_out = model.encoder(batch.src_tokens, batch.src_lengths)
    state: Any = {}
    steps = [model.decoder(batch.prev_output_tokens[:, : t + 1], encoder_out, state).logits for t in range(5)]
    return torch.cat(steps, dim=1)


def assert_fresh(model: EncoderDecoderModel, name: str, before: Tensor) -> None:
    """The logits are not those from before the change, but those of a model without cached weights."""
    got = stepped_logits(model, name)
    with torch.enable_grad():  # nothing is cached where gradients are recorded
        wanted = stepped_logits(copy.deepcopy(model), name).detach()
    assert_same(got, wanted.to(got.dtype))
    assert (got.to(before.dtype) - before).abs().max() > 1e-6


@every_model
def test_no_stale_weight_after_training(name: str) -> None:
    model = build(name)
    for _ in range(2):
        before = stepped_logits(model, name)
        train_step(model, name)
        assert_fresh(model, name, before)


@every_model
def test_every_parameter_is_trained(name: str) -> None:
    model = build(name)
    for module in model.modules():
        if isinstance(module, LayerDropList):
            module.p = 0.0
    assert [key for key, gradient in train_step(model, name).items() if gradient == 0] == []


@every_model
def test_no_stale_weight_after_a_step_in_evaluation_mode(name: str) -> None:
    """An optimizer may step without ``train()`` ever being called."""
    model = build(name)
    before = stepped_logits(model, name)
    batch = inputs(name, LENGTHS, target_length=5)
    with torch.enable_grad():
        model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens).logits.logsumexp(-1).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert_fresh(model, name, before)


@every_model
@pytest.mark.parametrize("assign", [False, True])
def test_no_stale_weight_after_loading(name: str, assign: bool) -> None:
    model = build(name)
    before = stepped_logits(model, name)
    other = build(name, seed=7).state_dict()
    model.load_state_dict(other, assign=assign)
    assert_fresh(model, name, before)


@every_model
def test_no_stale_weight_after_moving(name: str) -> None:
    model = build(name, torch.float32)
    before = stepped_logits(model, name)
    assert before.dtype == torch.float32
    model.to(torch.float64)
    got = stepped_logits(model, name)
    assert got.dtype == torch.float64
    assert (got - before).abs().max() < 1e-4
    with torch.enable_grad():
        wanted = stepped_logits(copy.deepcopy(model), name).detach()
    assert_same(got, wanted)


@every_model
def test_no_stale_weight_after_a_change_in_place(name: str) -> None:
    model = build(name)
    before = stepped_logits(model, name)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    assert_fresh(model, name, before)
    before = stepped_logits(model, name)
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.25
    assert_fresh(model, name, before)


@every_model
def test_inference_mode(name: str) -> None:
    """Weights prepacked in inference mode are usable in later decodes, and training is possible afterwards."""
    model = build(name)
    wanted = stepped_logits(model, name)
    model.train().eval()
    with torch.inference_mode():
        got = stepped_logits(model, name).clone()
    assert_same(got, wanted)
    assert_same(stepped_logits(model, name), wanted)
    train_step(model, name)


@every_model
def test_too_long(name: str) -> None:
    if not ZOO[name].has_table:
        pytest.skip("the model has no table of positions")
    model = build(name)
    longest_source, longest_target = model.max_positions()
    batch = inputs(name, [longest_source, 3], target_length=2)
    encoder_out = model.encoder(batch.src_tokens, batch.src_lengths)  # the maximum length itself is allowed
    short = encoder_out.index_select(torch.tensor([1]))
    targets = inputs(name, [3], target_length=longest_target + 1).prev_output_tokens
    state: Any = {}
    model.decoder(targets[:, :longest_target], short, state)
    with pytest.raises(ValueError, match=rf"{longest_target + 1} tokens.* {longest_target} positions"):
        model.decoder(targets, short, state)
    for lengths in ([longest_source + 1], [longest_source + 1, 3]):
        batch = inputs(name, lengths, target_length=2)
        with pytest.raises(ValueError, match=rf"{longest_source + 1} tokens.* {longest_source} positions"):
            model.encoder(batch.src_tokens, batch.src_lengths)
