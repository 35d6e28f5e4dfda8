"""What is particular to the convolutional model."""

import math

import pytest
import torch
import torch.nn.functional as F

from seqgen.extend import EncoderDecoderModel, QueryPositions
from seqgen.modules.attention import MultiStepAttention
from tests.model_zoo import build
from tests.subjects import inputs


def loss_of(model: EncoderDecoderModel) -> torch.Tensor:
    batch = inputs("fconv_uneven", [5, 3, 7], target_length=6)
    logits = model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), batch.prev_output_tokens[:, 1:].flatten())


def test_the_gradient_of_the_encoder_is_scaled_by_the_number_of_attention_layers() -> None:
    """Two of the four layers attend, so that what autograd gives is a quarter of the slope, measured by differences."""
    model = build("fconv_uneven")
    bias = model.encoder.fc2.bias
    loss_of(model).backward()
    step = 1e-5
    for i in range(3):
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                bias[i] += sign * step
                losses.append(loss_of(model).item())
                bias[i] -= sign * step
        slope = (losses[0] - losses[1]) / (2 * step)
        assert bias.grad[i].item() == pytest.approx(slope / 4, rel=1e-5)


def test_multi_step_attention_by_hand() -> None:
    torch.manual_seed(0)
    module = MultiStepAttention(3, 2).double()
    x, embedding = torch.randn(1, 1, 3).double(), torch.randn(1, 1, 2).double()
    keys, values = torch.randn(1, 4, 2).double(), torch.randn(1, 4, 2).double()
    out, weights = module(x, embedding, keys, values, need_weights=True)
    query = (module.in_projection(x) + embedding)[0, 0] * math.sqrt(0.5)
    wanted_weights = (keys[0] @ query).softmax(0)
    wanted = (module.out_projection(wanted_weights @ values[0]) + x[0, 0]) * math.sqrt(0.5)
    torch.testing.assert_close(weights[0, 0], wanted_weights)
    torch.testing.assert_close(out[0, 0], wanted)


@torch.no_grad()
def test_attention_is_the_mean_over_the_layers_that_attend() -> None:
    model, maps = build("fconv_uneven"), list[torch.Tensor]()
    for layer in model.decoder.attention:
        if layer is not None:
            layer.on_weights = maps.append
    batch = inputs("fconv_uneven", [5, 3], target_length=4)
    out = model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens, need_attention=True)
    assert len(maps) == 2
    torch.testing.assert_close(out.attention, (maps[0] + maps[1]).squeeze(1) / 2)


@torch.no_grad()
def test_values_carry_the_embedding_and_the_length() -> None:
    model = build("fconv_tiny")
    batch = inputs("fconv_tiny", [4, 9], target_length=1)
    out = model.encoder(batch.src_tokens, batch.src_lengths)
    embedded = model.encoder.embed_tokens(batch.src_tokens[:1, :4]) + model.encoder.embed_positions(
        QueryPositions(0, 4, torch.device("cpu"), causal=False)
    )
    wanted = (out.encoder_out[:1, :4] + embedded) * math.sqrt(0.5) * math.sqrt(4)
    torch.testing.assert_close(out.values[:1, :4], wanted)
