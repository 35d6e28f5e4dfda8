"""T5 against the original (transformers), and what is said of it by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.models.huggingface.t5 import ARCHITECTURE
from seqgen.models.t5 import T5Config, T5Model
from seqgen.modules.dropout import Dropout
from tests.huggingface_t5 import VARIANTS, VOCAB, seqgen_model, tiny_model, without_casts

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}

every_variant = pytest.mark.parametrize("variant", list(VARIANTS))
every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda dtype: str(dtype).removeprefix("torch."))


def batch(lengths: tuple[int, ...] = (14, 3, 9, 1), target: int = 13, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Sources padded on the right with 0, their lengths, and prefixes of targets after 0, padding among them."""
    generator = torch.Generator().manual_seed(seed)
    sources = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in enumerate(lengths):
        sources[row, :length] = torch.randint(2, VOCAB, (length,), generator=generator)
        sources[row, length - 1] = 1
    targets = torch.randint(VOCAB, (len(lengths), target), generator=generator)
    targets[:, 0] = 0
    return sources, torch.tensor(lengths), targets


@pytest.fixture(autouse=True)
def _exact_in_float64(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "casts" not in request.node.name:
        without_casts(monkeypatch)


def both(variant: str, dtype: torch.dtype) -> tuple[Any, T5Model]:
    original = tiny_model(variant, dtype=dtype)
    return original, seqgen_model(original)


def assert_near(got: Tensor, wanted: Tensor) -> None:
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=0, atol=TOLERANCE[wanted.dtype])


@every_variant
@every_dtype
@torch.no_grad()
def test_logits_and_encoder_are_the_originals(variant: str, dtype: torch.dtype) -> None:
    original, model = both(variant, dtype)
    sources, lengths, targets = batch()
    mask = sources.ne(0)
    wanted = original(input_ids=sources, attention_mask=mask, decoder_input_ids=targets)
    assert_near(model(sources, lengths, targets).logits, wanted.logits)
    encoded = model.encoder(sources, lengths)
    assert_near(encoded.encoder_out[mask], wanted.encoder_last_hidden_state[mask])


@every_variant
@torch.no_grad()
def test_logits_with_the_originals_casts(variant: str) -> None:
    """The original computes norms and softmax in float32 even in float64; this is as near as one can then come."""
    original, model = both(variant, torch.float64)
    sources, lengths, targets = batch()
    wanted = original(input_ids=sources, attention_mask=sources.ne(0), decoder_input_ids=targets).logits
    difference = (model(sources, lengths, targets).logits - wanted).abs().max()
    assert 1e-10 < difference < 4e-7 * max(1, wanted.abs().max())


@every_variant
@every_dtype
@torch.no_grad()
def test_steps_are_the_originals(variant: str, dtype: torch.dtype) -> None:
    original, model = both(variant, dtype)
    sources, lengths, targets = batch()
    encoder_out, state = model.encoder(sources, lengths), model.decoder.new_incremental_state(len(sources))
    theirs: Any = {"attention_mask": sources.ne(0), "use_cache": True}
    theirs["encoder_outputs"] = original.encoder(input_ids=sources, attention_mask=sources.ne(0))
    for upto in range(1, targets.size(1) + 1):
        wanted = original(decoder_input_ids=targets[:, upto - 1 : upto], **theirs)
        theirs["past_key_values"] = wanted.past_key_values
        assert_near(model.decoder(targets[:, :upto], encoder_out, state).logits, wanted.logits)


@every_variant
@every_dtype
def test_gradients_are_the_originals(variant: str, dtype: torch.dtype) -> None:
    original, model = both(variant, dtype)
    sources, lengths, targets = batch()
    labels = torch.roll(targets, -1, 1)
    labels[1:, -4:] = -100
    prefixes = original.prepare_decoder_input_ids_from_labels(labels)
    wanted = original(input_ids=sources, attention_mask=sources.ne(0), labels=labels).loss
    logits = model(sources, lengths, prefixes).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert_near(loss.detach(), wanted.detach())
    wanted.backward()
    loss.backward()
    ours = dict(model.named_parameters(remove_duplicate=False))
    theirs = dict(original.named_parameters(remove_duplicate=False))
    for name, piece in ARCHITECTURE.layout(model.cfg).pieces.items():
        gradient = ours[piece.parameter].grad
        assert gradient is not None
        assert theirs[name].grad.abs().max() > 0
        assert_near(piece.of(gradient), theirs[name].grad)


@pytest.mark.parametrize("variant", ["t5", "t5_v1_1", "umt5"])
def test_initialization_is_the_originals(variant: str) -> None:
    """Each weight's standard deviation, at a size at which chance moves it by little."""
    shape = {"vocab_size": 500, "d_model": 96, "d_kv": 24, "d_ff": 160, "num_heads": 6, "num_layers": 2}
    original = tiny_model(variant, **shape)
    for module in original.modules():  # the helper above has changed some
        original._init_weights(module)
    cfg = seqgen_model(original).cfg
    torch.manual_seed(1)
    ours = dict(T5Model(replace(cfg), 0).named_parameters(remove_duplicate=False))
    theirs = original.state_dict()
    for name, piece in ARCHITECTURE.layout(cfg).pieces.items():
        got, wanted = piece.of(ours[piece.parameter]).detach(), theirs[name]
        if got.dim() == 1:
            assert torch.equal(got, wanted)
            continue
        chance = 5 / (2 * got.numel()) ** 0.5  # five standard errors of a standard deviation, relative
        assert abs(got.std() / wanted.std() - 1) < 2 * chance, name
        assert abs(got.mean()) < 5 * got.std() / got.numel() ** 0.5, name


@torch.no_grad()
def test_the_published_walk_through() -> None:
    """8 heads of 64 and a source of 11: what is remembered after one step and after two, whatever the memory's form."""
    cfg = T5Config(vocab_size=50, d_model=512, d_kv=64, d_ff=64, num_layers=2, num_heads=8)
    model = T5Model(cfg, padding_idx=0).eval()
    sources = torch.randint(2, 50, (1, 11))
    encoder_out = model.encoder(sources, torch.tensor([11]))
    seen_biases: list[tuple[int, ...]] = []
    layer = model.decoder.layers[1]
    layer.register_forward_pre_hook(
        lambda module, args, options: seen_biases.append(tuple(options["attn_mask"].shape)), with_kwargs=True
    )
    tokens = torch.tensor([[0, 7, 9]])
    state: Any = {}
    for step in (1, 2, 3):
        model.decoder(tokens[:, :step], encoder_out, state)
        own, cross = (state[part.state_key]["cache"].view() for part in (layer.self_attn, layer.encoder_attn))
        assert own.keys.shape == own.values.shape == (1, 8, step, 64)
        assert cross.keys.shape == cross.values.shape == (1, 8, 11, 64)
        assert seen_biases[-1] == (1, 8, 1, step)
    # The bias of the second step: the new position sees the one before it and itself, in buckets 1 and 0.
    bias = model.decoder.position_biases[0]
    assert torch.equal(bias(1, 1, 2)[0, :, 0], bias.weight[[1, 0]].t())


def test_dropout_is_everywhere_the_original_has_it() -> None:
    """Counts of dropouts that act in training: embedding, weights, hidden features, each part's output, the end."""
    cfg = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=8, num_layers=1, num_heads=2, dropout_rate=0.25)
    original = tiny_model("t5", **{"num_layers": 1, "dropout_rate": 0.25})
    model = T5Model(cfg, 0).train()
    calls = {"ours": 0, "theirs": 0}

    def count(whose: str) -> Any:
        def hook(*_: Any) -> None:
            calls[whose] += 1

        return hook

    for module in model.modules():
        if isinstance(module, Dropout):
            assert module.p == 0.25
            module.register_forward_hook(count("ours"))
    for module in original.train().modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(count("theirs"))
    attentions = 3  # the original drops attention weights by a function, which no hook sees
    sources, lengths, targets = batch()
    model(sources, lengths, targets)
    original(input_ids=sources, decoder_input_ids=targets)
    assert calls["ours"] == calls["theirs"] + attentions
