"""Checkpoints of fairseq's transformer_lm: every way of saving options, old names, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loading import load_model
from tests.fairseq_checkpoints import (
    LANGUAGE_MODEL,
    fairseq_weights,
    in_args,
    in_dict,
    options_of,
    random_model,
    write,
)
from tests.models.fairseq.test_checkpoints import CONFIGS

PROMPT = torch.tensor([[2, 5, 9, 4], [2, 7, 7, 21]])
FURTHER = torch.tensor([[2, 6, 8], [2, 10, 11]])


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(PROMPT, torch.tensor([4, 4]), FURTHER).logits
    return out


@pytest.mark.parametrize("final_norm", [True, False])
def test_the_formula_of_the_embedding(final_norm: bool, tmp_path: Path) -> None:
    """fairseq's: scaled embeddings, plus learned positions numbered from padding_idx + 1, pre-norm layers."""
    config = replace(CONFIGS["language model, learned positions, shared"], decoder_layers=1, decoder_attention_heads=1)
    config.no_decoder_final_norm = not final_norm
    weights = fairseq_weights(random_model(config))
    tokens = torch.cat([PROMPT, FURTHER[:, 1:]], dim=1)

    def w(name: str) -> Tensor:
        return weights[f"decoder.{name}"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w(f"{name}.weight").T + w(f"{name}.bias")

    def norm(x: Tensor, name: str) -> Tensor:
        return nn.functional.layer_norm(x, (8,), w(f"{name}.weight"), w(f"{name}.bias"))

    with torch.no_grad():
        x = w("embed_tokens.weight")[tokens] * 8**0.5 + w("embed_positions.weight")[2 : 2 + tokens.size(1)]
        y = norm(x, "layers.0.self_attn_layer_norm")
        q, k, v = (linear(y, f"layers.0.self_attn.{letter}_proj") for letter in "qkv")
        hidden = torch.ones(6, 6).triu(1).bool()
        scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(hidden, -torch.inf)
        x = x + linear(scores.softmax(-1) @ v, "layers.0.self_attn.out_proj")
        y = linear(norm(x, "layers.0.final_layer_norm"), "layers.0.fc1")
        x = x + linear(nn.functional.gelu(y), "layers.0.fc2")
        wanted = (norm(x, "layer_norm") if final_norm else x) @ w("embed_tokens.weight").T
    loaded = load_model(write(tmp_path, random_model(config), in_args(options_of(config)), weights))
    torch.testing.assert_close(logits(loaded.model), wanted[:, 3:], rtol=0, atol=1e-5)


def test_old_options(tmp_path: Path) -> None:
    """Positions default to the tokens of an example; an option implied that there is no final normalization."""
    config = replace(LANGUAGE_MODEL, no_decoder_final_norm=True)
    options = {
        **options_of(config),
        "no_tie_adaptive_proj": True,
        "max_target_positions": None,
        "tokens_per_sample": 33,
    }
    del options["no_decoder_final_norm"]
    loaded = load_model(write(tmp_path, random_model(config), in_args(options)))
    assert loaded.model.decoder.max_positions() == 33
    torch.testing.assert_close(logits(loaded.model), logits(random_model(config)))


def test_pre_norm_whatever_the_option(tmp_path: Path) -> None:
    """Some versions build a pre-norm model although the option says otherwise; its weights have a final norm."""
    model = random_model(LANGUAGE_MODEL)
    options = {**options_of(LANGUAGE_MODEL), "decoder_normalize_before": False}
    loaded = load_model(write(tmp_path, model, in_dict(options)))
    torch.testing.assert_close(logits(loaded.model), logits(model))
