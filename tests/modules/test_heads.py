"""Head masks: those of transformers, in forward passes and in decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import ConfigError
from seqgen.core.structures import Source
from seqgen.inspection import masked_heads
from seqgen.modules.inspection import record_passes
from tests import huggingface_gpt2
from tests.generators import make_generator
from tests.huggingface_internals import assert_near, every_kind, pair_of
from tests.model_zoo import build, sharp
from tests.scripted_model import batch_of, dictionary
from tests.subjects import inputs

WITH_HEADS = ["transformer_prenorm_gelu_learned", "t5_gated_untied", "transformer_lm_learned"]
every_model = pytest.mark.parametrize("name", WITH_HEADS)


def masks_of(config: Any) -> dict[str, Tensor]:
    """Random factors for the encoder, the decoder and encoder-decoder attention, zeros among them."""
    layers = (config.num_layers, config.num_decoder_layers) if hasattr(config, "num_decoder_layers") else None
    encoder, decoder = layers or (config.encoder_layers, config.decoder_layers)
    heads = [getattr(config, f"{side}_attention_heads", None) or config.num_heads for side in ("encoder", "decoder")]
    generator = torch.Generator().manual_seed(3)
    shapes = {"encoder": (encoder, heads[0]), "decoder": (decoder, heads[1]), "cross": (decoder, heads[1])}
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


@torch.no_grad()
def test_recorded_weights_are_those_before_the_mask() -> None:
    """transformers returns them multiplied by the mask."""
    pair = pair_of("mbart")
    masks = masks_of(pair.original.config)
    theirs = pair.original_pass(output_attentions=True, **{THEIRS[name]: mask for name, mask in masks.items()})
    with record_passes(pair.model) as recording, masked_heads(pair.model, **masks):
        pair.pass_()
    for layer, weights in enumerate(recording.decoder[0].cross_attention):
        assert_near(weights * masks["cross"][layer].view(-1, 1, 1), theirs.cross_attentions[layer])


@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_decoding_with_masked_heads_is_that_of_transformers(beam: int) -> None:
    pair = pair_of("byt5")
    masks = masks_of(pair.original.config)
    theirs = pair.original_decode(beam, 6, **{THEIRS[name]: mask for name, mask in masks.items()})
    with masked_heads(pair.model, **masks):
        found = pair.decode(beam, 6)
    plain = pair.decode(beam, 6)
    for sentence, hypotheses in enumerate(found):
        size = len(hypotheses[0].tokens)
        assert hypotheses[0].tokens.tolist() == theirs.sequences[beam * sentence, 1 : 1 + size].tolist()
    assert [h[0].score for h in found] != pytest.approx([h[0].score for h in plain], abs=1e-3)


@torch.no_grad()
def test_masked_heads_of_gpt2_are_those_of_transformers(tmp_path: Path) -> None:
    original = huggingface_gpt2.tiny_model()
    model = load_model(huggingface_gpt2.tiny_folder(tmp_path / "gpt2")).model.eval()
    tokens, mask = torch.tensor([[5, 9, 20, 298, 44, 7]]), torch.rand(2, 3)
    wanted = original(tokens, head_mask=mask).logits[:, 3:]
    with masked_heads(model, decoder=mask):
        got = model(tokens[:, :4], torch.tensor([4]), torch.cat([tokens[:, :1], tokens[:, 4:]], dim=1)).logits
    assert_near(got, wanted)


@every_model
@torch.no_grad()
def test_a_masked_decode_is_that_without_a_cache(name: str) -> None:
    """Long sources and many beams, so that all ways of computing attention are masked."""
    model, given = sharp(name), inputs(name, [6, 2, 4], 1)
    heads = model.decoder.layers[0].self_attn.num_heads
    mask = torch.linspace(0, 1.5, heads)
    kinds = (
        {"decoder": mask} if name == "transformer_lm_learned" else dict.fromkeys(("encoder", "decoder", "cross"), mask)
    )
    batch = replace(batch_of([[5, 2]] * 3), source=Source(given.src_tokens, given.src_lengths))
    found = []
    for options in ({"use_cache": False}, {"beam_indirection": True}, {"beam_indirection": False}):
        generator = make_generator([model], dictionary(19), beam_size=4, max_len_b=7, **options)
        plain = [hypotheses[0].score for hypotheses in generator.generate(batch)]
        with masked_heads(model, **kinds):
            results = generator.generate(batch)
        found.append([[(h.tokens.tolist(), round(h.score, 9)) for h in hypotheses] for hypotheses in results])
        assert plain != [hypotheses[0].score for hypotheses in results]
    assert found[0] == found[1] == found[2]


def test_factors_have_gradients() -> None:
    """The importance of a head is the gradient of the loss with respect to its factor (Michel et al. 2019, eq. 2)."""
    model, given = build("t5_gated_untied").double(), inputs("t5_gated_untied", [4, 2], 3)

    def loss(mask: Tensor) -> Tensor:
        with masked_heads(model, cross=mask):
            out = model(given.src_tokens, given.src_lengths, given.prev_output_tokens).logits
        return out.log_softmax(-1)[..., 5].sum()

    mask = torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (mask,))


def test_a_model_without_heads_is_refused() -> None:
    with (
        pytest.raises(ConfigError, match="has no heads of encoder-decoder"),
        masked_heads(build("fconv_tiny"), cross=torch.ones(1)),
    ):
        pass
