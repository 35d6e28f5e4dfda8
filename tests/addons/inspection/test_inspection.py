"""Logits of steps, embeddings and head masks: those of transformers, and of the model without them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from seqgen.addons.inspection import StepLogits, given_embeddings, masked_heads
from seqgen.extend import Batch, Dictionary, GenerationConfig, SequenceGenerator, Source, build_setup, load_model
from tests import huggingface_gpt2
from tests.generators import make_generator
from tests.huggingface_internals import assert_near, every_kind, pair_of
from tests.hypotheses import assert_same
from tests.model_zoo import ARCHITECTURES, PAD, build, sharp
from tests.refusals import refusals
from tests.scripted_model import batch_of, dictionary
from tests.subjects import inputs

# --- logits of chosen steps


@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_logits_of_chosen_steps_are_those_of_transformers(beam: int) -> None:
    pair = pair_of("byt5")
    theirs = pair.original_decode(beam, 6, output_logits=True)
    observer = StepLogits([0, 2])
    pair.decode(beam, 6, observers=[observer])
    assert any(2 in steps for steps in observer.found.values())
    for sentence, steps in observer.found.items():
        assert set(steps) <= {0, 2}
        for step, (logits,) in steps.items():
            wanted = theirs.logits[step][beam * sentence : beam * sentence + beam]
            assert_near(logits[:1] if step == 0 else logits, wanted[:1] if step == 0 else wanted)


# --- embeddings in place of tokens, and masks of heads: as in transformers, and as in the same model without them


few_models = pytest.mark.parametrize("name", ["transformer_marian", "t5_gated_untied", "fconv_uneven"])


@every_kind
@torch.no_grad()
def test_a_changed_forward_pass_is_that_of_transformers(kind: str) -> None:
    pair = pair_of(kind)
    torch.manual_seed(2)
    dim = pair.original.config.d_model
    source, target = torch.randn(3, 6, dim), torch.randn(3, 4, dim)
    # the decoders of Pegasus and Marian multiply embeddings that are given by the scale, unlike their encoders
    scales = kind in ("pegasus", "marian")
    given = {"decoder_inputs_embeds": target / (pair.model.decoder.embed_scale if scales else 1)}
    wanted = [pair.original_pass(inputs_embeds=source, **further).logits for further in ({}, given)]
    lengths = pair.source.src_lengths
    with given_embeddings(pair.model.encoder, source) as ids:
        src_tokens = ids.masked_fill(~pair.mask, pair.pad)
        assert_near(pair.model(src_tokens, lengths, pair.prefixes).logits, wanted[0])
        with given_embeddings(pair.model.decoder, target) as target_ids:
            assert_near(pair.model(src_tokens, lengths, target_ids).logits, wanted[1])


@torch.no_grad()
def test_prompts_and_masks_of_gpt2_are_those_of_transformers(tmp_path: Path) -> None:
    original = huggingface_gpt2.tiny_model()
    model = load_model(huggingface_gpt2.tiny_folder(tmp_path / "gpt2")).model.eval()
    prompt, further = torch.randn(1, 4, 24), torch.tensor([[7, 9]])
    wanted = original(inputs_embeds=torch.cat([prompt, original.transformer.wte(further)], 1)).logits[:, 3:]
    options = {"inputs_embeds": prompt, "attention_mask": torch.ones(1, 4), "num_beams": 3, "early_stopping": True}
    outputs = original.generate(**options, max_new_tokens=6, do_sample=False, pad_token_id=299)
    words = Dictionary([f"w{number}" for number in range(300)], pad=299, eos=299, unk=299, bos=None)
    cfg = GenerationConfig(semantics="huggingface", beam=3, max_len=6, min_len=0, early_stopping="true")
    with given_embeddings(model.decoder, prompt) as ids:
        got = model(ids, torch.tensor([4]), torch.cat([further[:, :1], further], dim=1)).logits
        batch = Batch(torch.arange(1), Source(ids, torch.tensor([4])))
        ((best, *_),) = SequenceGenerator(build_setup([model], words, cfg)).generate(batch)
    assert_near(got, wanted)
    tokens, mask = torch.tensor([[5, 9, 20, 298, 44, 7]]), torch.rand(2, 3)
    with masked_heads(model, decoder=mask):
        got = model(tokens[:, :4], torch.tensor([4]), torch.cat([tokens[:, :1], tokens[:, 4:]], dim=1)).logits
    assert_near(got, original(tokens, head_mask=mask).logits[:, 3:])
    assert best.tokens.tolist() == outputs[0, : len(best.tokens)].tolist()


@few_models
@torch.no_grad()
def test_embeddings_of_tokens_are_the_tokens(name: str) -> None:
    """In decoding as well; only some of the positions are given as embeddings."""
    model, given = sharp(name), inputs(name, [6, 2, 4], 1)
    generator = make_generator([model], dictionary(19), beam_size=3, max_len_b=7)
    batch = replace(batch_of([[5, 2]] * 3), source=Source(given.src_tokens, given.src_lengths))
    wanted = generator.generate(batch)
    embedding, scale = model.encoder.embed_tokens, getattr(model.encoder, "embed_scale", 1.0)
    with given_embeddings(model.encoder, embedding(given.src_tokens[:, :3]) * scale) as ids:
        tokens = torch.cat([ids, given.src_tokens[:, 3:]], dim=1)
        tokens = torch.where(given.src_tokens == PAD, given.src_tokens, tokens)
        found = generator.generate(replace(batch, source=Source(tokens, given.src_lengths)))
    assert_same(found, wanted)
    with pytest.raises(IndexError):
        embedding(ids)  # they are unknown outside the block


def test_gradients_flow_to_the_embeddings_alone() -> None:
    """As in prompt tuning, with the weights of the model frozen."""
    model, given = build("t5_tiny").double().requires_grad_(False), inputs("t5_tiny", [3, 2], 3)
    assert model.encoder.embed_tokens is model.decoder.embed_tokens
    prompt, other = (torch.randn(size, 24, dtype=torch.float64, requires_grad=True) for size in (2, 1))
    with given_embeddings(model.encoder, prompt) as ids, given_embeddings(model.decoder, other) as further:
        assert further.tolist() == [int(ids.max()) + 1]
        tokens = torch.cat([ids.expand(2, 2), given.src_tokens], dim=1)
        targets = torch.cat([given.prev_output_tokens[:, :2], further.expand(2, 1)], dim=1)
        out = model(tokens, given.src_lengths + 2, targets).logits
    out[:, -1].log_softmax(-1)[:, 5].sum().backward()
    assert all(tensor.grad.abs().amin() > 0 for tensor in (prompt, other))
    assert "forward" not in vars(model.encoder.embed_tokens)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "average"])
@pytest.mark.parametrize("stepwise", [False, True])
def test_mixtures_of_one_token_are_the_token(name: str, stepwise: bool) -> None:
    """In a pass and by steps, with a block for each; other mixtures have the gradients of finite differences."""
    model, given = sharp(name), inputs(name, [6, 2, 4], 4)
    decoder, tokens, prefix = model.decoder, given.src_tokens, given.prev_output_tokens
    reader = model.encoder if hasattr(model.encoder, "embed_tokens") else decoder

    def logits(source: Tensor, target: Tensor) -> Tensor:
        with given_embeddings(reader, source, mixtures=True) as ids:
            encoder_out = model.encoder(torch.where(tokens == PAD, tokens, ids), given.src_lengths)
            if not stepwise:
                with given_embeddings(decoder, target, mixtures=True) as further:
                    return decoder(further, encoder_out).logits
            state, found = decoder.new_incremental_state(3), []
            for step in range(4):
                with given_embeddings(decoder, target[:, step], mixtures=True) as further:
                    columns = torch.cat([prefix[:, :step], further.unsqueeze(1)], dim=1)
                    found.append(decoder(columns, encoder_out, incremental_state=state).logits)
            return torch.cat(found, dim=1)

    sizes = reader.embed_tokens.num_embeddings, decoder.embed_tokens.num_embeddings
    hot = [one_hot(ids, size).double() for ids, size in zip((tokens, prefix), sizes, strict=True)]
    wanted = model(tokens, given.src_lengths, prefix).logits
    assert_near(logits(*hot), wanted, 1e-10 if stepwise else 0)
    mixed = [torch.rand_like(one).softmax(-1).requires_grad_() for one in hot]
    ways, weights = [torch.randn_like(one) for one in hot], torch.randn_like(wanted)
    if name.startswith("fconv"):
        ways[0].zero_()  # the gradient of its encoder is scaled
    (logits(*mixed) * weights).sum().backward()
    slope = sum(float((one.grad * way).sum()) for one, way in zip(mixed, ways, strict=True))
    with torch.no_grad():
        moved = [[one + sign * 1e-6 * way for one, way in zip(mixed, ways, strict=True)] for sign in (1, -1)]
        above, below = (float((logits(*each) * weights).sum()) for each in moved)
    assert slope == pytest.approx((above - below) / 2e-6, rel=1e-5)


# --- masks of heads


def masks_of(config: Any) -> dict[str, Tensor]:
    """Random factors for the encoder, the decoder and encoder-decoder attention, zeros among them."""
    t5 = hasattr(config, "num_decoder_layers")
    names = ("num_layers", "num_decoder_layers") if t5 else ("encoder_layers", "decoder_layers")
    layers = [getattr(config, name) for name in names]
    heads = [config.num_heads if t5 else getattr(config, f"{side}_attention_heads") for side in ("encoder", "decoder")]
    generator = torch.Generator().manual_seed(3)
    shapes = {"encoder": (layers[0], heads[0]), "decoder": (layers[1], heads[1]), "cross": (layers[1], heads[1])}
    masks = {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}
    for mask in masks.values():
        mask[0, 1] = 0
    return masks


THEIRS = {"encoder": "head_mask", "decoder": "decoder_head_mask", "cross": "cross_attn_head_mask"}


@every_kind
@torch.no_grad()
def test_masked_heads_are_those_of_transformers(kind: str) -> None:
    pair = pair_of(kind)
    masks = masks_of(pair.original.config)
    plain = pair.pass_()
    for names in (["encoder"], ["decoder"], ["cross"], list(masks)):
        # version 4.53.3 raises a NameError for a T5 with a mask of the encoder alone
        theirs = {THEIRS[name]: mask if name in names else torch.ones_like(mask) for name, mask in masks.items()}
        wanted = pair.original_pass(**theirs).logits
        with masked_heads(pair.model, **{name: masks[name] for name in names}):
            got = pair.pass_()
        assert_near(got, wanted)
        assert (got - plain).abs().max() > 1e-3
    assert torch.equal(pair.pass_(), plain)


@pytest.mark.parametrize("name", ["transformer_prenorm_gelu_learned", "t5_gated_untied", "transformer_lm_learned"])
@torch.no_grad()
def test_a_masked_decode_is_that_without_a_cache(name: str) -> None:
    """Long sources and many beams, so that all ways of computing attention are masked."""
    model, given = sharp(name), inputs(name, [6, 2, 4], 1)
    mask = torch.linspace(0, 1.5, model.decoder.layers[0].self_attn.num_heads)
    sides = ["decoder"] if name == "transformer_lm_learned" else ["encoder", "decoder", "cross"]
    batch = replace(batch_of([[5, 2]] * 3), source=Source(given.src_tokens, given.src_lengths))
    found = []
    for options in ({"use_cache": False}, {"beam_indirection": True}, {"beam_indirection": False}):
        generator = make_generator([model], dictionary(19), beam_size=4, max_len_b=7, **options)
        plain = generator.generate(batch)
        with masked_heads(model, **dict.fromkeys(sides, mask)):
            found.append(generator.generate(batch))
        assert [some[0].score for some in plain] != [some[0].score for some in found[-1]]
    assert_same(found[0], found[1], 1e-9)
    assert_same(found[0], found[2], 1e-9)


def test_factors_have_gradients() -> None:
    """The importance of a head is the gradient of the loss with respect to its factor (Michel et al. 2019, eq. 2)."""
    model, given = build("t5_gated_untied").double(), inputs("t5_gated_untied", [4, 2], 3)

    def loss(mask: Tensor) -> Tensor:
        with masked_heads(model, cross=mask):
            out = model(given.src_tokens, given.src_lengths, given.prev_output_tokens).logits
        return out.log_softmax(-1)[..., 5].sum()

    mask = torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (mask,))


# --- refusals


def given(name: str, dim: int, mixtures: bool = False) -> None:
    with given_embeddings(build(name).encoder, torch.zeros(2, dim), mixtures):
        pass


test_refusals = refusals(
    (lambda: given("t5_tiny", 12), "dimension 12 are given to T5Encoder, whose embeddings have dimension 24"),
    (
        lambda: given("t5_tiny", 24, True),
        "mixtures of dimension 24 are given to T5Encoder, whose mixtures have dimension 2",
    ),
    (lambda: given("transformer_lm_tiny", 128), "PromptEncoder cannot be given embeddings"),
    (lambda: masked_heads(build("fconv_tiny"), cross=torch.ones(1)).__enter__(), "no heads of encoder-decoder"),
    (lambda: StepLogits([-1]), "-1 is not the number of a step"),
)
