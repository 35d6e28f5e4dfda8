"""Small random language models with a vocabulary of words, ready to continue prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.registry import MODELS
from seqgen.task import PromptTask
from seqgen.text.members import ModelInMemory
from tests.scripted_model import dictionary

WORDS = 19
PROMPTS = ["w1 w5 w8", "", "w3 w3 w17 w3 w5 w9 w11", "w4", "w0 w18 w2 w7 w1 w1"]

_SMALL = {
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "max_target_positions": 24,
}


def language_model(
    seed: int = 0, tokenizer: Tokenizer | None = None, sharpness: float = 2.5, **changes: Any
) -> ModelInMemory:
    """A language model in float64 with scaled random weights, so that hypotheses differ and some end early."""
    tokenizer = tokenizer or WhitespaceTokenizer(dictionary(WORDS))
    task = PromptTask(None, tokenizer, tokenizer)
    torch.manual_seed(seed)
    config = replace(MODELS.config("transformer_lm"), **{**_SMALL, **changes})
    model = MODELS.entry("transformer_lm").component.build_model(config, task).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(sharpness)
    return ModelInMemory(task, model)
