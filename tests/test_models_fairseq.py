"""Forward passes against those of fairseq's own models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.fairseq_weights import ORACLES, load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ORACLES.is_dir(), reason="the shared folder with fairseq's outputs is not here"),
]


def tensors(name: str) -> dict[str, Tensor]:
    with np.load(ORACLES / f"{name}.forward.npz") as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def assert_close_where(mask: Tensor, got: Tensor, wanted: Tensor) -> None:
    assert mask.sum() > 10
    torch.testing.assert_close(got[mask], wanted[mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["fconv", "transformer"])
@torch.no_grad()
def test_log_probabilities(name: str) -> None:
    oracle = tensors(name)
    model = load(name)
    out = model(oracle["src_tokens"], oracle["src_lengths"], oracle["prev_output_tokens"])
    got = model.get_normalized_probs(out.logits)
    assert_close_where(oracle["target"] != 1, got, oracle["lprobs"])


@pytest.mark.parametrize("name", ["fconv", "transformer"])
@torch.no_grad()
def test_log_probabilities_step_by_step(name: str) -> None:
    oracle = tensors(name)
    model = load(name)
    encoder_out = model.encoder(oracle["src_tokens"], oracle["src_lengths"])
    state: dict[Any, Any] = {}
    tokens = oracle["prev_output_tokens"]
    steps = [model.decoder(tokens[:, : t + 1], encoder_out, state).logits for t in range(tokens.size(1))]
    got = model.get_normalized_probs(torch.cat(steps, dim=1))
    assert_close_where(oracle["target"] != 1, got, oracle["lprobs"])


@torch.no_grad()
def test_encoder_of_the_transformer() -> None:
    oracle = tensors("transformer")
    got = load("transformer").encoder(oracle["src_tokens"], oracle["src_lengths"])
    assert_close_where(oracle["src_tokens"] != 1, got.encoder_out, oracle["encoder_out"])


@torch.no_grad()
def test_encoder_of_the_convolutional_model() -> None:
    oracle = tensors("fconv")
    got = load("fconv").encoder(oracle["src_tokens"], oracle["src_lengths"])
    words = oracle["src_tokens"] != 1
    assert_close_where(words, got.encoder_out, oracle["encoder_x"])
    # seqgen's values carry the factor sqrt(length) that fairseq applies in each attention
    values = got.values / oracle["src_lengths"].sqrt().view(-1, 1, 1)
    assert_close_where(words, values, oracle["encoder_y"])
